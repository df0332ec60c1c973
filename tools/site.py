"""The documents as a site of plain pages: `python -m tools.site FOLDER`. A link that leads nowhere is an error.

Pages keep their places; what they link to outside of the documents (tests, examples) is shown as it stands.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md", "benchmarks/README.md")
SECTIONS = ("tutorial", "howto", "reference", "explanation", "adr")
ELSEWHERE = ("https://", "http://", "mailto:")
STYLE = """
:root { color-scheme: light dark; font: 16px/1.6 system-ui, sans-serif }
body { margin: 0; display: grid; grid-template-columns: 15rem minmax(0, 52rem); gap: 2rem }
nav { padding: 1rem; border-right: 1px solid #8884; font-size: .9rem; min-height: 100vh } nav p { margin: 1rem 0 .2rem }
nav a { display: block; text-decoration: none } main { padding: 1rem 1rem 4rem }
code, pre { font: 14px/1.45 ui-monospace, monospace } pre { background: #8881; padding: .7rem; overflow-x: auto }
table { border-collapse: collapse; display: block; overflow-x: auto } img { max-width: 100% }
th, td { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
@media (max-width: 50rem) { body { display: block } nav { border: 0; min-height: 0 } }
"""


def build(target: Path) -> list[str]:
    """Write the site; what is wrong with its links."""
    sources = documents()
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    markdown = MarkdownIt("commonmark").enable("table")
    parsed = {path: markdown.parse(text) for path, text in texts.items()}
    anchors = {path: _name_headings(tokens) for path, tokens in parsed.items()}
    menu = [(path, _title(texts[path])) for path in sources]
    problems: list[str] = []
    shown: set[Path] = set()
    for path, tokens in parsed.items():
        for token in _inline(tokens):
            name = "href" if token.type == "link_open" else "src"
            link = str(token.attrs.get(name, ""))
            if not link or link.startswith(ELSEWHERE):
                continue
            place, _, anchor = link.partition("#")
            wanted = (path.parent / place).resolve() if place else path
            if not wanted.exists() or not wanted.is_relative_to(ROOT):
                problems.append(f"{path.relative_to(ROOT)}: {link} is not there")
            elif anchor and wanted in anchors and anchor not in anchors[wanted]:
                problems.append(f"{path.relative_to(ROOT)}: {link} has no such heading")
            else:
                shown.add(wanted)
                token.attrs[name] = _relative(wanted, path) + (f"#{anchor}" if anchor else "")
        body = markdown.renderer.render(tokens, markdown.options, {})
        _write(target / _page(path), _framed(_title(texts[path]), body, path, menu))
    for path in sorted(shown - set(sources)):
        _show(path, target, menu)
    return problems


def documents() -> list[Path]:
    found = [ROOT / name for name in TOP if (ROOT / name).exists()]
    for section in SECTIONS:
        found += sorted((ROOT / "docs" / section).glob("*.md"))
    return found


def _inline(tokens: Sequence[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or () if child.type in ("link_open", "image")]


def _name_headings(tokens: Sequence[Token]) -> set[str]:
    """Ids as GitHub gives them."""
    names: set[str] = set()
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            text = "".join(child.content for child in token.children or ())
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            before.attrs["id"] = name
            names.add(name)
    return names


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else "Penstock"


def _page(path: Path) -> Path:
    relative = path.relative_to(ROOT)
    if relative == Path("README.md"):
        return Path("index.html")
    if path.suffix == ".png":
        return relative
    return relative.with_suffix(".html") if path.suffix == ".md" else Path(f"{relative}.html")


def _relative(wanted: Path, page: Path) -> str:
    return os.path.relpath(_page(wanted), _page(page).parent)


def _framed(title: str, body: str, page: Path, menu: Sequence[tuple[Path, str]]) -> str:
    entries, section = [], ""
    for path, name in menu:
        own = path.parent.name if path.parent.parent.name == "docs" else ""
        if own != section:
            section = own
            entries.append(f"<p><b>{escape(section)}</b></p>")
        entries.append(f'<a href="{_relative(path, page)}">{escape(name)}</a>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><nav>{''.join(entries)}</nav><main>{body}</main></html>\n"
    )


def _show(path: Path, target: Path, menu: Sequence[tuple[Path, str]]) -> None:
    name = str(path.relative_to(ROOT))
    if path.suffix == ".png":
        _write(target / _page(path), path.read_bytes())
        return
    text = "\n".join(sorted(each.name for each in path.iterdir())) if path.is_dir() else path.read_text("utf-8")
    _write(target / _page(path), _framed(name, f"<h1>{escape(name)}</h1><pre>{escape(text)}</pre>", path, menu))


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def main() -> int:
    problems = build(Path(sys.argv[1]))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
