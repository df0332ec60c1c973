"""Every guarantee is listed with its tests, and has mutations that these tests must catch."""

from __future__ import annotations

import re
from pathlib import Path

from tools.mutate import ROOT, load

PROMISES = ROOT / "docs/explanation/promises.md"


def rows() -> dict[str, str]:
    found = re.findall(r"^\| (\d+) \| (.+) \|$", PROMISES.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def test_every_promise_has_a_mutation() -> None:
    assert {each.promise for each in load()} == rows().keys()


def test_every_mutation_matches_the_code_exactly_once() -> None:
    for each in load():
        assert (ROOT / each.file).read_text(encoding="utf-8").count(each.old) == 1, each


def test_every_promise_links_to_existing_tests() -> None:
    for row in rows().values():
        tests = re.findall(r"\]\((\S+?)\)", row)
        assert tests
        for test in tests:
            assert (PROMISES.parent / test).exists(), test


def test_every_mutation_names_an_existing_test_file() -> None:
    for each in load():
        for test in re.findall(r"tests/\S+\.py", each.test):
            assert Path(ROOT / test).exists(), test
