"""Every guarantee is listed with its tests, and has mutations that these tests must catch."""

from __future__ import annotations

import re
from pathlib import Path

from tools.mutate import ROOT, load

PROMISES = ROOT / "docs/explanation/promises.md"


def rows() -> dict[str, str]:
    found = re.findall(r"^\| (\d+) \| (.+) \|$", PROMISES.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def test_every_promise_is_tried_by_breaking_the_code_behind_it() -> None:
    assert {each.promise for each in load()} == rows().keys()


def test_what_is_to_be_broken_stands_where_it_is_looked_for() -> None:
    for each in load():
        assert (ROOT / each.file).read_text(encoding="utf-8").count(each.old) == 1, each


def test_every_promise_names_tests_that_are_there() -> None:
    for row in rows().values():
        tests = re.findall(r"\]\((\S+?)\)", row)
        assert tests
        for test in tests:
            assert (PROMISES.parent / test).exists(), test


def test_what_is_to_notice_is_there() -> None:
    for each in load():
        for test in re.findall(r"tests/\S+\.py", each.test):
            assert Path(ROOT / test).exists(), test
