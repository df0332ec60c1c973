"""Runs the examples in the documentation word for word, and checks its links."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documentation import PAGES, ROOT, Walk, blocks, needs_postgres, needs_spark
from tests.integration.serving import clean_environment
from tests.postgres import cluster, drop_schema, new_schema

RUN = {"bash", "console", "python"}
SHOWN = {"text", "toml", "yaml", "json", "ini", "sql", "js", "html"}
# Pages with tests of their own: test_deploy.py checks the fleet commands without running them; test_howto_backup.py,
# test_cli_migrate_store.py and test_howto_outbox.py also check what the stores contain afterwards. JavaScript is run by
# test_js_client.py. object-storage.md needs a bucket and is not run:
# tests/spark/test_remote_lake.py runs such commands with an S3 server, but not this page.
APART = {"object-storage.md", "scale-out.md", "back-up.md", "migrate-store.md", "outbox.md"}


def walks(*, spark: bool) -> list[Any]:
    pages = [page for page in PAGES if needs_spark(page) == spark and page.name not in APART]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if not needs_postgres(request.getfixturevalue("page")):
        yield None
        return
    schema = new_schema()
    yield f"{cluster().url}&schema={schema}"
    drop_schema(schema)


def walk(page: Path, store: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    Walk(page, folder, store).run()


@pytest.mark.parametrize("page", walks(spark=False))
def test_every_block_of_a_page_runs(page: Path, store: str | None, tmp_path: Path) -> None:
    walk(page, store, tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", walks(spark=True))
def test_every_block_of_a_page_with_spark_runs(page: Path, store: str | None, tmp_path: Path) -> None:
    walk(page, store, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_block_has_a_known_language(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a code block has no language"
    assert {language for language, _, _ in blocks(page)} <= RUN | SHOWN


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    environment = clean_environment() | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text("utf-8")
    assert "repository/tests/crash/test_kill_rounds.py.html" in home
    assert (tmp_path / "reference" / "cli.html").exists()
    assert (tmp_path / "search").is_dir()


def test_every_guarantee_of_the_readme_links_to_an_existing_test() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    section = re.search(r"## Guarantees\n(.*?)\n## ", text, re.DOTALL)
    assert section is not None
    rows = [row for row in section[1].splitlines() if row.startswith("| ") and not row.startswith("| Guarantee")]
    assert rows
    for row in rows:
        named = re.search(r"\[(test_\w+)\]\((tests/[\w/]+\.py)\)", row)
        assert named, row
        assert f"def {named[1]}(" in (ROOT / named[2]).read_text("utf-8"), row
