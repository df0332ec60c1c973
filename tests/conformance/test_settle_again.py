"""Settling is idempotent by token: a repeated request gets the same result and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from penstock.core.commands import Ack, Command, Extend, Lease, Nack, Release, Settled, SettledAll, SettleItem, Transact
from penstock.core.model import State
from penstock.errors import LeaseLost, UnknownMessage
from penstock.store.postgres import PostgresStore
from tests.conformance.cutting import Cutter
from tests.conformance.postgres_support import PostgresUnderTest, Tables
from tests.conformance.support import MINUTE_MS, Clock, StoreUnderTest, push_command, texts
from tests.postgres import cluster

OK, STALE, UNKNOWN = Settled.OK, Settled.STALE, Settled.UNKNOWN
Verb = Callable[..., Command[SettledAll]]
settling = pytest.mark.parametrize("verb", [Ack, Nack, Release])
LEASE_MS = 1_000


@settling
@pytest.mark.parametrize("plain", [True, False])
def test_a_repeated_settle_gets_the_same_result(store: StoreUnderTest, clock: Clock, verb: Verb, plain: bool) -> None:
    store.push("a", priority=0 if plain else 1)
    leased = store.lease_one(lease_ms=LEASE_MS)
    first = store.settle(verb, [leased])
    assert first.results == [OK]
    before = store.get("q", leased.id)
    assert store.settle(verb, [leased]) == first
    clock.advance(2 * LEASE_MS)
    assert store.settle(verb, [leased]) == first
    assert store.get("q", leased.id) == before


@pytest.mark.parametrize("verb", [Nack, Release])
def test_a_repeated_settle_leaves_the_message_to_its_current_consumer(
    store: StoreUnderTest, clock: Clock, verb: Verb
) -> None:
    store.push("a")
    first = store.lease_one()
    assert store.settle(verb, [first]).results == [OK]
    clock.advance(MINUTE_MS)
    second = store.lease_one(worker="second")
    before = store.get("q", first.id)
    assert store.settle(verb, [first]).results == [OK]
    assert store.get("q", first.id) == before
    assert store.ack(second) == [OK]
    assert store.settle(verb, [first]).results == [OK]


@pytest.mark.parametrize("verb", [Nack, Release])
def test_a_repeated_settle_and_the_current_lease_can_share_a_request(
    store: StoreUnderTest, clock: Clock, verb: Verb
) -> None:
    store.push("a")
    first = store.lease_one()
    assert store.settle(verb, [first]).results == [OK]
    clock.advance(MINUTE_MS)
    assert store.settle(verb, [first, store.lease_one()]).results == [OK, OK]


@settling
def test_a_settled_token_is_not_valid_for_another_verb(store: StoreUnderTest, verb: Verb) -> None:
    store.push("a")
    leased = store.lease_one()
    assert store.settle(verb, [leased]).results == [OK]
    for other in {Ack, Nack, Release, Extend} - {verb}:
        assert store.settle(other, [leased]).results == [UNKNOWN if verb is Ack else STALE]


def test_a_late_ack_is_not_taken_for_the_successful_one(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    late = store.lease_one(lease_ms=LEASE_MS)
    clock.advance(LEASE_MS)
    assert store.ack(late) == [STALE]
    assert store.ack(store.lease_one()) == [OK]
    assert store.ack(late) == [UNKNOWN]


@settling
def test_a_settled_token_is_not_valid_for_another_message_or_queue(store: StoreUnderTest, verb: Verb) -> None:
    store.push("a", "b", "c")
    store.make("other")
    a, b, c = store.lease(limit=3)
    assert store.settle(verb, [a, c]).results == [OK, OK]
    assert store.get("q", b.id).state is State.LEASED
    wrong = [SettleItem(a.id + 10, a.token), SettleItem(a.id, None), SettleItem(a.id, "f" * 32)]
    gone = UNKNOWN if verb is Ack else STALE
    assert store.do(verb(queue="q", items=wrong)).results == [UNKNOWN, gone, gone]
    assert store.do(verb(queue="other", items=[SettleItem(a.id, a.token)])).results == [UNKNOWN]
    assert store.settle(verb, [b, a, c]).results == [OK, OK, OK]


def test_a_repeated_nack_returns_the_same_state(store: StoreUnderTest) -> None:
    store.make(max_attempts=2)
    store.push("a", "b", "c")
    a, b, c = store.lease(limit=3)
    items = [SettleItem(a.id, a.token, delay_ms=0), SettleItem(b.id, b.token, delay_ms=50)]
    first = store.do(Nack(queue="q", items=items))
    assert first.states == [State.READY, State.SCHEDULED]
    store.ack(c)
    (dying,) = store.lease()
    assert dying.id == a.id
    last = store.settle(Nack, [dying])
    assert last.states == [State.DEAD]
    assert store.do(Nack(queue="q", items=items)) == first
    assert store.settle(Nack, [dying]) == last


@settling
def test_a_settlement_is_remembered_for_some_minutes(store: StoreUnderTest, clock: Clock, verb: Verb) -> None:
    from penstock.store.common import SETTLED_MINUTES

    store.push("a")
    leased = store.lease_one()
    assert store.settle(verb, [leased]).results == [OK]
    clock.advance(SETTLED_MINUTES * MINUTE_MS)
    assert store.settle(verb, [leased]).results == [OK]
    clock.advance(MINUTE_MS)
    assert store.settle(verb, [leased]).results == [UNKNOWN if verb is Ack else STALE]


@settling
def test_a_settlement_is_known_to_other_processes(shared: StoreUnderTest, verb: Verb) -> None:
    shared.push("a")
    leased = shared.lease_one()
    assert shared.settle(verb, [leased]).results == [OK]
    again = shared.open_another().apply([verb(queue="q", items=[SettleItem(leased.id, leased.token)])])
    assert again[0].results == [OK]


@settling
def test_a_transaction_is_executed_once_by_its_leases(store: StoreUnderTest, verb: Verb) -> None:
    """A transaction pushes only if its leases are current, and a token that has settled is no longer a lease."""
    store.push("a")
    leased = store.lease_one()
    item = SettleItem(leased.id, leased.token, delay_ms=50)
    command = Transact(commands=[verb(queue="q", items=[item]), push_command("result")])
    store.do(command)
    with pytest.raises((LeaseLost, UnknownMessage)):
        store.do(command)
    assert texts(store.lease(limit=9)).count("result") == 1
    twice = Transact(commands=[verb(queue="q", items=[item, item])])
    with pytest.raises((LeaseLost, UnknownMessage)):
        store.do(twice)
    assert store.settle(verb, [leased]).results == [OK]


def settled_rows(store: StoreUnderTest) -> int:
    tables: Any
    if isinstance(store, PostgresUnderTest):
        with closing(Tables(str(store.path), store.schema)) as tables:
            ((count,),) = tables.execute("SELECT count(*) FROM penstock_settled").fetchall()
    else:
        ((count,),) = store.store._writer.execute("SELECT count(*) FROM penstock_settled").fetchall()  # type: ignore[attr-defined]
    return int(count)


def test_messages_leased_and_acked_together_cost_one_row(store: StoreUnderTest) -> None:
    store.push(*map(str, range(100)))
    leased = store.lease(limit=100)
    assert set(store.settle(Ack, leased).results) == {OK}
    assert settled_rows(store) == 1


def test_old_settlements_are_deleted_in_bounded_steps(store: StoreUnderTest, clock: Clock) -> None:
    from penstock.store.common import SETTLED_MINUTES

    for _ in range(30):
        store.push("a")
        store.ack(store.lease_one())
    assert settled_rows(store) == 30
    clock.advance((SETTLED_MINUTES + 2) * MINUTE_MS)
    # At 5,000 settles a second, 300,000 rows expire each minute; a sweep deletes at most 10,000 of them.
    assert store.sweep(limit=2).more
    assert settled_rows(store) == 10
    assert not store.sweep(limit=2).more
    assert settled_rows(store) == 0


def test_a_file_without_a_server_deletes_old_settlements(in_sqlite: StoreUnderTest, clock: Clock) -> None:
    from penstock.store.common import SETTLED_MINUTES
    from penstock.store.sqlite.transaction import FORGET_EVERY

    for _ in range(4):
        for _ in range(FORGET_EVERY):
            in_sqlite.push("a")
            in_sqlite.ack(in_sqlite.lease_one())
        clock.advance((SETTLED_MINUTES + 2) * MINUTE_MS)
    assert settled_rows(in_sqlite) <= 2 * FORGET_EVERY


@pytest.mark.parametrize("ends", [False, True], ids=["lease current", "lease expired"])
def test_an_ack_with_a_lost_response_is_ok_though_the_lease_expired_meanwhile(
    unjournalled: PostgresUnderTest, clock: Clock, ends: bool
) -> None:
    unjournalled.push("a")

    def meanwhile() -> None:
        clock.advance(2 * LEASE_MS if ends else 0)

    with Cutter(cluster().folder, cut_before=False, at=b".finish_ranges", meanwhile=meanwhile) as cutter:
        url = f"postgresql://postgres@/postgres?host={cutter.folder}"
        with closing(PostgresStore(url, schema=unjournalled.schema, clock=clock, monotonic=clock.monotonic)) as store:
            store.apply([push_command("b")])
            (leased,) = store.apply([Lease(queue="q", lease_ms=LEASE_MS)])
            cutter.armed.set()
            items = [SettleItem(message.id, message.token) for message in leased.messages]
            (outcome,) = store.apply([Ack(queue="q", items=items)])
    assert cutter.cuts == 1
    assert outcome.results == [OK]
    assert unjournalled.drain() == ["b"]
