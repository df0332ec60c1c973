"""The checker finds each kind of violation and reports no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.checker import check
from tests.proof.history import Delivered, Fault, History, Kind, Op, load

LEASE_MS = 1_000


def history(kind: Kind, ops: list[Op], faults: list[Fault] | None = None) -> History:
    return History("sqlite", 1, LEASE_MS, {"p": kind}, ops, faults or [])


def push(payload: str = "a", id_: int = 1, at: int = 0, **more: object) -> Op:
    return Op("w", "push", "p", at, at + 5, "ok", [payload], [id_], **more)  # type: ignore[arg-type]


def lease(at: int, token: str = "t", payload: str = "a", id_: int = 1, attempts: int = 1, client: str = "c") -> Op:
    return Op(client, "lease", "p", at, at + 5, "ok", delivered=[Delivered(id_, payload, token, attempts)], limit=1)


def settle(at: int, token: str = "t", id_: int = 1, verb: str = "ack", outcome: str = "ok", stale: bool = False) -> Op:
    stales: list[int | str] = [id_] if stale else []
    return Op("c", verb, "p", at, at + 5, outcome, [], [id_], [token], stales)  # type: ignore[arg-type]


def failed(op: Op, outcome: str) -> Op:
    op.outcome, op.ids = outcome, []  # type: ignore[assignment]
    return op


def append(payload: str, offset: int, at: int = 0) -> Op:
    return Op("w", "append", "p", at, at + 5, "ok", [payload], [offset])


def read(at: int, *records: tuple[int, str], client: str = "drain") -> Op:
    return Op(client, "read", "p", at, at + 5, "ok", delivered=[Delivered(*each) for each in records])


def take(at: int, *messages: tuple[int, str], outcome: str = "ok") -> Op:
    delivered = [Delivered(*each) for each in messages]
    return Op("c", "take", "p", at, at + 5, outcome, delivered=delivered, limit=2)  # type: ignore[arg-type]


HALF = Op("w", "push", "p", 0, 5, "maybe", ["a", "b"])
IN_ORDER = [push(), push("b", 2, 10), lease(20), lease(30, "u", "b", 2), settle(40), settle(40, "u", 2)]
OVERTAKEN = [push(), push("b", 2, 10), lease(20, "u", "b", 2), lease(30), settle(40), settle(40, "u", 2)]
DELAYED_LEASE = Op("d", "lease", "p", 20, 1_400, "ok", delivered=[Delivered(1, "a", "t", 1)], limit=1)
ACK_IN_FLIGHT = Op("c", "ack", "p", 40, 1_400, "ok", [], [1], ["t"])
TWICE = [lease(20), settle(25), lease(120, "u", id_=2), settle(140, "u", id_=2)]
TWO_LEASES = [push(), lease(20), lease(500, "u", attempts=2), settle(520, "u")]
CUT = Fault("power cut", 30, 60, loses_leases=True)
AHEAD, BACK = Fault("clock +1 h", 30, 40, ahead_s=3_600), Fault("clock -1 h", 30, 40, ahead_s=0)


def set_back(at: int, ahead_s: int = -3_600) -> Fault:
    return Fault("clock -1 h", at, at + 5, ahead_s=ahead_s)


@pytest.mark.parametrize(
    ("ops", "faults", "explained"),
    [
        ([push(), lease(20), settle(40)], [], {}),
        ([push(), lease(20), settle(40, outcome="maybe")], [], {}),
        ([failed(push(), "maybe")], [], {}),
        ([failed(push(), "no")], [], {}),
        ([HALF], [], {}),
        ([push(), lease(20), settle(40, verb="nack"), lease(60, "u"), settle(80, "u")], [], {}),
        (
            [push(), lease(20), lease(1_200, "u"), settle(1_300, "u")],
            [],
            {"held until its lease expired": 1},
        ),
        (
            [push(), lease(20), lease(1_200, "u", attempts=2), settle(1_300, "u")],
            [Fault("clock -1 h", 1_100, 1_110, ahead_s=-3_600)],
            {"held until its lease expired (clock -1 h)": 1},
        ),
        (
            [push(), lease(20), ACK_IN_FLIGHT, lease(1_200, "u", attempts=2), settle(1_300, "u")],
            [],
            {
                "its ack did not arrive, and its lease expired": 1,
                "acked by another client while its ack was in flight": 1,
            },
        ),
        (
            [push(), DELAYED_LEASE, lease(1_200, "u", attempts=2), settle(1_300, "u"), settle(1_450, stale=True)],
            [Fault("SIGSTOP", 50, 1_390)],
            {"settled after its lease expired (SIGSTOP)": 1},
        ),
        (
            [push(), lease(20), settle(1_100, stale=True), lease(1_200, "u"), settle(1_300, "u")],
            [Fault("SIGSTOP", 50, 1_150)],
            {"settled after its lease expired (SIGSTOP)": 1},
        ),
        (
            [push(), lease(20), settle(40, outcome="maybe"), lease(1_200, "u"), settle(1_300, "u")],
            [Fault("network cut", 30, 60)],
            {"its ack did not arrive, and its lease expired (network cut)": 1},
        ),
        (TWO_LEASES, [CUT], {"a crash lost its lease (power cut)": 1}),
        (TWO_LEASES, [AHEAD], {"held until its lease expired (clock +1 h)": 1}),
        (TWO_LEASES, [set_back(30)], {"leased before the clock was set back": 1}),
        (TWO_LEASES, [set_back(495)], {"leased before the clock was set back": 1}),
        (TWO_LEASES, [Fault("clock +1 h", 0, 1, ahead_s=3_600), BACK], {"leased before the clock was set back": 1}),
        (
            [push(), lease(20), settle(40, verb="nack", outcome="maybe"), lease(90, "u"), settle(95, "u")],
            [],
            {"nacked, but the response was lost": 1},
        ),
        (IN_ORDER, [], {}),
        (
            [*OVERTAKEN, Op("c", "lease", "p", 12, 25, "maybe", limit=1)],
            [],
            {"delivered in order, but that response was lost": 1},
        ),
        # The client retried the lease and recorded only the retry.
        (
            [*OVERTAKEN, Op("c", "lease", "p", 12, 60, "ok", limit=1)],
            [Fault("network cut", 15, 18)],
            {"delivered in order, but that response was lost": 1},
        ),
    ],
)
def test_permitted_histories_have_no_violations_and_are_explained(
    ops: list[Op], faults: list[Fault], explained: dict[str, int]
) -> None:
    verdict = check(history("fifo", ops, faults))
    assert verdict.violations == []
    assert dict(verdict.explained) == explained


@pytest.mark.parametrize(
    ("kind", "ops", "faults", "violation"),
    [
        ("queue", [push()], [], "put lost"),
        ("queue", [push(), lease(20)], [], "put lost"),
        ("queue", [Op("w", "push", "p", 0, 100, "ok", ["a"], [2]), *TWICE], [AHEAD], "put duplicated"),
        ("queue", [push(), lease(20), settle(40, stale=True)], [], "put lost"),
        ("queue", [failed(push(), "no"), lease(20), settle(40)], [], "put unexpected"),
        ("queue", [HALF, lease(20), settle(40)], [], "put unexpected"),
        ("queue", [lease(20), settle(40)], [], "pop unexpected"),
        ("queue", [push(), lease(20, id_=2), settle(40, id_=2)], [], "put duplicated"),
        ("queue", TWO_LEASES, [], "pop duplicated"),
        ("queue", TWO_LEASES, [Fault("SIGKILL", 30, 60)], "pop duplicated"),
        ("queue", TWO_LEASES, [Fault("power cut", 600, 700, loses_leases=True)], "pop duplicated"),
        ("queue", [push(), lease(20), lease(1_200), settle(1_300)], [], "pop duplicated"),
        ("queue", [push(), lease(20), settle(40), lease(1_200, "u")], [], "ack lost"),
        ("queue", [push(), lease(20), settle(40), lease(1_200, "u", client="drain")], [CUT], "ack lost"),
        # The clock was set back by too little, before the first lease, or after the second.
        ("queue", TWO_LEASES, [set_back(30, -4)], "pop duplicated"),
        ("queue", TWO_LEASES, [set_back(10)], "pop duplicated"),
        ("queue", TWO_LEASES, [set_back(600)], "pop duplicated"),
        ("fifo", OVERTAKEN, [], "order unexpected"),
        ("fifo", [*OVERTAKEN, Op("c", "lease", "p", 12, 60, "ok", limit=1)], [], "order unexpected"),
        ("stream", [append("a", 0)], [], "put lost"),
        ("stream", [append("a", 0), read(20, (0, "a"), (1, "a"))], [], "put duplicated"),
        ("stream", [append("a", 0), read(20, (0, "a"), (1, "x"))], [], "pop unexpected"),
        ("stream", [append("a", 1), append("b", 0, 10), read(20, (0, "b"), (1, "a"))], [], "order unexpected"),
        ("stream", [append("a", 0), read(20, (1, "b"), client="c"), read(30, (0, "a"))], [], "pop lost"),
        ("inbox", [push(), take(20)], [], "put lost"),
        ("inbox", [push(), take(20, (1, "a")), take(40, (1, "a"))], [], "pop duplicated"),
    ],
)
def test_violations_are_reported(kind: Kind, ops: list[Op], faults: list[Fault], violation: str) -> None:
    verdict = check(history(kind, ops, faults))
    assert [each.partition(":")[0] for each in verdict.violations] == [violation]


def test_an_inbox_may_lose_only_the_messages_of_a_lost_response() -> None:
    ops = [push(), push("b", 2), push("c", 3), take(20, outcome="maybe")]
    assert len(check(history("inbox", ops)).violations) == 3
    assert check(history("inbox", [*ops[1:]])).violations == []


def test_a_saved_history_gets_the_same_verdict(tmp_path: Path) -> None:
    history("queue", TWO_LEASES, [CUT]).save(tmp_path / "history.json")
    assert check(load(tmp_path / "history.json")).explained == {"a crash lost its lease (power cut)": 1}
