"""The accounting reports each kind of violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.accounting import Accounting, Ledger

PUT = "put p1\nwas-put m1\n"
POPPED = "pop\npopped m1 p1 0 1000 1001\n"


def settle(folder: Path, notes: str, drained: set[str]) -> Accounting:
    file = folder / "notes"
    file.write_text(notes)
    ledger = Ledger()
    ledger.read([file])
    for id_ in drained:
        ledger.deliver(id_, "p1", len(ledger.deliveries[id_]), 9_000_000, 9_000_000)
    return ledger.settle(drained)


@pytest.mark.parametrize(
    ("notes", "drained"),
    [
        (PUT, {"m1"}),
        (PUT + POPPED + "ack m1 0\nacked m1 0 1002\n", set()),
        (PUT + POPPED + "ack m1 0\n", set()),
        (PUT + POPPED + "ack m1 0\n", {"m1"}),
        (PUT + POPPED + "nack m1 0\nnacked m1 0 1002\npop\npopped m1 p1 1 1003 1004\n", {"m1"}),
        (PUT + POPPED + "pop\npopped m1 p1 1 7001 7002\n", {"m1"}),
        ("put p1 p2\n", set()),
    ],
)
def test_permitted_logs_have_no_violations(tmp_path: Path, notes: str, drained: set[str]) -> None:
    assert settle(tmp_path, notes, drained).violations == []


@pytest.mark.parametrize(
    ("notes", "drained", "violation"),
    [
        (PUT, set(), "put lost"),
        (PUT + POPPED, set(), "put lost"),
        (PUT + POPPED + "ack m1 0\nacked m1 0 1002\n", {"m1"}, "ack lost"),
        (PUT + POPPED + POPPED, {"m1"}, "pop duplicated"),
        (PUT + POPPED + "pop\npopped m1 p1 1 3000 3001\n", {"m1"}, "pop duplicated"),
        (PUT + "put p1\nwas-put m2\n", {"m1"}, "put duplicated"),
        ("put p1 p2\n", {"m1"}, "put unexpected"),
        ("put p9\n", {"m1"}, "pop unexpected"),
        (PUT + "unexpected OSError()\n", {"m1"}, "put unexpected"),
    ],
)
def test_violations_are_reported(tmp_path: Path, notes: str, drained: set[str], violation: str) -> None:
    accounting = settle(tmp_path, notes, drained)
    assert [each.partition(":")[0] for each in accounting.violations] == [violation]
    row, column = violation.split()
    assert accounting.rows[row][column] == 1
