"""Acknowledged operations survive failing servers, databases and networks. `postgres_rounds.py` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.fleet_accounting import Delivery, FleetLedger, Kept

# One round for each kind of fault.
ROUNDS = 6


@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost_or_doubled_when_a_fleet_fails() -> None:
    # It runs in its own process because one of its threads may hang.
    seed = str(random.SystemRandom().getrandbits(32))
    script = Path(__file__).with_name("postgres_rounds.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", str(ROUNDS), "--seed", seed], capture_output=True, text=True, timeout=380
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def delivery(settled: str = "", at: int = 0, token: str = "t", settled_at: int = 0) -> Delivery:
    return Delivery(1, "p", token, at, at + 5, settled, settled_at)


ACKED = delivery("acked", settled_at=50)


@pytest.mark.parametrize(
    ("kept", "deliveries", "drained", "crash", "violations"),
    [
        ("yes", [ACKED], set(), None, []),
        ("yes", [delivery("ack")], set(), None, []),
        ("maybe", [], set(), None, []),
        ("yes", [delivery(), delivery("acked", 7_000, "u", 7_100)], set(), None, []),
        ("yes", [delivery("lost-ack"), delivery("acked", 70, "u", 100)], set(), (10, 60), []),
        ("yes", [], set(), None, ["put lost"]),
        ("no", [ACKED], set(), None, ["put unexpected"]),
        ("yes", [delivery("lost-ack")], set(), None, ["put lost"]),
        ("yes", [ACKED], {1}, None, ["ack lost"]),
        ("yes", [delivery("acked", settled_at=7_000), delivery("", 8_000, "u")], set(), None, ["ack lost"]),
        ("yes", [delivery(), delivery("acked", 70, "u", 100)], set(), None, ["pop duplicated"]),
        ("yes", [delivery(), delivery("acked", 7_000, "t", 7_100)], set(), None, ["pop duplicated"]),
    ],
)
def test_violations_of_a_fleet_are_reported(
    kept: Kept, deliveries: list[Delivery], drained: set[int], crash: tuple[int, int] | None, violations: list[str]
) -> None:
    ledger = FleetLedger()
    ledger.put(["p"]).kept = kept
    ledger.popped(deliveries)
    ledger.crashes += [] if crash is None else [crash]
    assert [each.partition(":")[0] for each in ledger.settle(drained).violations] == violations
