"""MkDocs hooks that open the site with the README and add a page for each linked file outside docs/.

Documents keep relative links, so that they also work in the repository. A broken link fails the build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FENCE = re.compile(r"^(```+).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#|<)([^)\s#]+)(#[^)\s]*)?\)")
BLOCK_MODE = re.compile(r"^(```\w+) \w+$", re.MULTILINE)  # how the tests run a block, as in "bash background"
LANGUAGES = {".py": "python", ".scala": "scala", ".c": "c", ".toml": "toml", ".yaml": "yaml", ".json": "json"}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every file outside docs/ that the documentation links to, directly or through such a page."""
    from mkdocs.structure.files import File

    pending = [README, *(ROOT / name for name in PROJECT), *DOCS.rglob("*.md")]
    seen = set(pending)
    for path in pending:  # the loop appends to it
        if path.suffix != ".md":
            continue
        for target in _links(path):
            if target not in seen and target.exists() and not target.is_relative_to(DOCS):
                seen.add(target)
                pending.append(target)
    for path in pending:
        if path != README and not path.is_relative_to(DOCS):
            files.append(File.generated(config, _page(path), content=_content(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    if uri == "index.md":
        opening = README.read_text("utf-8").partition("\n## Documentation\n")[0]
        contents = markdown.partition("\n## ")[2]
        return f"{_with_links(opening, README, uri)}\n## {_with_links(contents, DOCS / uri, uri)}"
    outside = uri.startswith("repository/") and (ROOT / uri.removeprefix("repository/")).suffix == ".md"
    source = ROOT / uri.removeprefix("repository/") if outside else DOCS / uri
    return _with_links(markdown, source, uri) if source.exists() else markdown


def _links(path: Path) -> Iterator[Path]:
    for found in LINK.finditer(FENCE.sub("", path.read_text("utf-8"))):
        yield (path.parent / found[1]).resolve()


def _with_links(markdown: str, source: Path, uri: str) -> str:
    """Point relative links at pages of the site. Links to missing files stay as they are, and MkDocs reports them."""

    def point(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        if not target.exists():
            return found[0]
        relative = os.path.relpath(_page(target), Path(uri).parent)
        return f"]({relative}{found[2] or ''})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(BLOCK_MODE.sub(r"\1", part) if part.startswith("```") else LINK.sub(point, part) for part in parts)


def _page(path: Path) -> str:
    """Return the path of the page that shows a file."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path == README:
        return "index.md"
    name = path.relative_to(ROOT).as_posix().lstrip(".")  # MkDocs leaves out hidden files
    return f"repository/{name}" if path.suffix in (".md", ".png") else f"repository/{name}.md"


def _content(path: Path) -> str | bytes:
    if path.suffix == ".png":
        return path.read_bytes()
    if path.suffix == ".md":
        return path.read_text("utf-8")
    text = "\n".join(sorted(each.name for each in path.iterdir())) if path.is_dir() else path.read_text("utf-8")
    title = path.relative_to(ROOT).as_posix()
    return (
        f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
    )
