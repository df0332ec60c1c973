"""What the documentation shows is run, word for word; its links lead somewhere; its reference is what the code says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documentation import PAGES, ROOT, Walk, blocks, needs_postgres, needs_spark
from tests.postgres import cluster, drop_schema, new_schema
from tools import site

RUN = {"bash", "console", "python"}
SHOWN = {"text", "toml", "yaml", "json", "ini", "sql", "js", "html"}
APART = {"scale-out.md", "back-up.md", "migrate-store.md", "outbox.md"}
"""A fleet's commands are only checked, by test_deploy.py. Backup, migration and the outbox are run by
test_howto_back_up.py, test_cli_migrate_store.py and test_howto_outbox.py, which look at what is in the stores
afterwards; blocks of JavaScript by test_js_client.py."""


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
def test_a_block_says_what_it_is(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a block without a language"
    assert {language for language, _, _ in blocks(page)} <= RUN | SHOWN


def test_the_documents_make_a_site_in_which_every_link_leads_somewhere(tmp_path: Path) -> None:
    assert site.build(tmp_path) == []
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "docs" / "reference" / "cli.html").exists()


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
