"""Administrative commands: remove, purge, configure, pause, drop."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.commands import Configure, Drop, Pause, Purge, Remove
from penstock.core.model import PushItem, QueueOptions, State
from penstock.errors import InvalidInput, QueueExists, QueueNotEmpty, UnknownQueue
from tests.conformance.support import StoreUnderTest, texts

EVERY_STATE = {"ready": 3, "scheduled": 1, "leased": 2, "dead": 1, "archived": 1}


def fill(store: StoreUnderTest, queue: str = "q") -> dict[str, int]:
    """Push one message for each state, plus the variants of ready and leased, and return their ids by name."""
    store.make(queue, max_attempts=1, archive_ms=None)
    store.bury("dead-leased", "dead", queue=queue)
    store.lease(queue + ".dlq", lease_ms=10_000)
    store.push("archived", queue=queue)
    store.take(queue)
    store.push("leased", queue=queue)
    store.lease(queue, lease_ms=10_000)
    store.push("released", queue=queue)
    store.release(store.lease_one(queue))
    store.push("scheduled", queue=queue, delay_ms=1_000)
    store.push("filed", queue=queue, priority=-1)
    store.push("plain", queue=queue)
    assert store.counts(queue) == EVERY_STATE
    return {message.payload.decode(): message.id for message in store.export(queue)}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("plain", "ready"),
        ("filed", "ready"),
        ("released", "ready"),
        ("scheduled", "scheduled"),
        ("leased", "leased"),
        ("dead-leased", "leased"),
        ("dead", "dead"),
        ("archived", "archived"),
    ],
)
def test_a_message_can_be_removed_in_any_state(store: StoreUnderTest, name: str, state: str) -> None:
    message_id = fill(store)[name]
    assert store.do(Remove(queue="q", ids=[message_id])).removed == 1
    assert store.get("q", message_id) is None
    left = EVERY_STATE | {state: EVERY_STATE[state] - 1}
    assert store.counts() == {state: count for state, count in left.items() if count}
    assert store.do(Remove(queue="q", ids=[message_id])).removed == 0
    assert store.info().totals.removed == 1


def test_remove_counts_only_existing_messages(store: StoreUnderTest) -> None:
    first, second = store.push("a", "b")
    (elsewhere,) = store.push("c", queue="other")
    outcome = store.do(Remove(queue="q", ids=[second, second, 0, -5, 99, elsewhere, 1 << 44 | first]))
    assert outcome.removed == 1
    assert store.drain() == ["a"]
    assert store.counts("other") == {"ready": 1}


@pytest.mark.parametrize("message_id", [1 << 44 | 1, 1 << 45 | 1, 2**63, -(2**63), 2**80])
def test_removing_an_id_out_of_range_removes_nothing(store: StoreUnderTest, message_id: int) -> None:
    store.push("a", priority=1)
    assert store.do(Remove(queue="q", ids=[message_id])).removed == 0
    assert store.counts() == {"ready": 1}
    assert store.drain() == ["a"]


def test_acking_a_removed_message_returns_unknown(store: StoreUnderTest) -> None:
    store.push("a")
    leased = store.lease_one()
    store.do(Remove(queue="q", ids=[leased.id]))
    assert store.ack(leased) == ["unknown"]


@pytest.mark.parametrize("state", list(State))
def test_a_purge_empties_one_state_and_no_other(store: StoreUnderTest, state: State) -> None:
    fill(store)
    fill(store, "other")
    assert store.do(Purge(queue="q", states=[state])).removed == EVERY_STATE[state]
    assert store.counts() == {other: count for other, count in EVERY_STATE.items() if other != state}
    assert store.counts("other") == EVERY_STATE


def test_a_purge_removes_waiting_messages_by_default(store: StoreUnderTest) -> None:
    fill(store)
    assert store.do(Purge(queue="q")).removed == 4
    assert store.counts() == {"leased": 2, "dead": 1, "archived": 1}
    assert store.lease() == []


def test_purging_the_dead_letter_name_removes_only_dead_letters(store: StoreUnderTest) -> None:
    fill(store)
    assert store.do(Purge(queue="q.dlq")).removed == 1
    assert store.counts() == {"ready": 3, "scheduled": 1, "leased": 2, "archived": 1}


def test_a_purge_keeps_messages_newer_than_its_bound(store: StoreUnderTest) -> None:
    store.push("a")
    store.push("b", priority=1)
    bound = store.push("c", delay_ms=50)[0]
    store.push("d")
    store.push("e", priority=1)
    store.push("f", delay_ms=50)
    outcome = store.do(Purge(queue="q", up_to_id=bound))
    assert (outcome.removed, outcome.more) == (3, False)
    assert store.drain() == ["e", "d"]
    assert store.counts() == {"scheduled": 1, "leased": 2}


def test_a_purge_in_steps_removes_everything_present_at_its_start(store: StoreUnderTest) -> None:
    for number in range(10):
        store.push(str(number), priority=number % 2)
    removed, bound, steps = 0, None, 0
    more = True
    while more:
        outcome = store.do(Purge(queue="q", limit=3, up_to_id=bound))
        assert outcome.removed <= 3
        removed, bound, more, steps = removed + outcome.removed, outcome.up_to_id, outcome.more, steps + 1
        store.push("meanwhile")
        assert steps < 10
    assert removed == 10
    assert set(store.drain()) == {"meanwhile"}


def test_creating_a_queue_combines_defaults_and_changes(store: StoreUnderTest) -> None:
    command = Configure(queue="q", changes={"lease_ms": 9}, create=QueueOptions(max_attempts=2))
    made = store.do(command)
    assert (made.created, made.changed) == (True, True)
    assert (made.info.options.lease_ms, made.info.options.max_attempts) == (9, 2)
    again = store.do(command)
    assert (again.created, again.changed) == (False, False)
    with pytest.raises(UnknownQueue):
        store.do(Configure(queue="none", changes={}))


def test_configure_changes_only_the_given_options(store: StoreUnderTest) -> None:
    before = store.make(lease_ms=9, archive_ms=None).options
    changed = store.do(Configure(queue="q", changes={"ttl_ms": 5, "push_rate": 3}))
    assert changed.changed
    assert store.info().options == before.changed({"ttl_ms": 5, "push_rate": 3.0})


def test_an_exact_create_refuses_a_queue_with_other_options(store: StoreUnderTest) -> None:
    store.make(lease_ms=9)
    exact = Configure(queue="q", changes={"lease_ms": 8, "dlq": False}, create=QueueOptions(), exact=True)
    with pytest.raises(QueueExists) as refused:
        store.do(exact)
    assert refused.value.differing == ["lease_ms", "dlq"]
    exact.changes = {"lease_ms": 9}
    assert not store.do(exact).changed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_ms", 0),
        ("lease_ms", "9"),
        ("lease_ms", None),
        ("max_attempts", 0),
        ("backoff", "none"),
        ("max_in_flight", 0),
        ("delay_ms", -1),
        ("ttl_ms", 0),
        ("push_rate", 0),
        ("push_rate", float("nan")),
        ("dlq", 1),
        ("colour", "red"),
    ],
)
def test_an_invalid_option_is_named_and_changes_nothing(store: StoreUnderTest, name: str, value: Any) -> None:
    store.make()
    for command in (
        Configure(queue="q", changes={"priority": 3, name: value}),
        Configure(queue="new", changes={name: value}, create=QueueOptions()),
    ):
        with pytest.raises(InvalidInput) as refused:
            store.do(command)
        assert refused.value.field == name
        assert name in str(refused.value)
    assert store.info().options == QueueOptions()
    assert store.find_queue("new") is None


def test_changed_options_apply_to_the_next_lease(store: StoreUnderTest) -> None:
    store.push("a", "b")
    store.lease()
    store.make(max_in_flight=1)
    assert store.lease() == []
    store.make(max_in_flight=None, lease_ms=5)
    leased = store.lease_one()
    assert leased.leased_until == store.clock.now + 5


def test_a_pause_reports_if_it_changed_anything(store: StoreUnderTest) -> None:
    store.make()
    assert store.do(Pause(queue="q")).changed
    assert not store.do(Pause(queue="q")).changed
    assert store.do(Pause(queue="q", paused=False)).changed
    with pytest.raises(UnknownQueue):
        store.do(Pause(queue="none"))


def test_a_queue_with_messages_is_dropped_only_with_force(store: StoreUnderTest) -> None:
    fill(store)
    with pytest.raises(QueueNotEmpty) as refused:
        store.do(Drop(queue="q"))
    assert refused.value.messages == sum(EVERY_STATE.values())
    assert store.counts() == EVERY_STATE
    assert store.do(Drop(queue="q", force=True)).removed == sum(EVERY_STATE.values())
    assert store.find_queue("q") is None
    assert store.sweep().more is False


def test_a_recreated_queue_starts_empty(store: StoreUnderTest) -> None:
    old = fill(store)
    store.send(PushItem(payload=b"x", key="k"))
    store.do(Drop(queue="q", force=True))
    (receipt,) = store.send(PushItem(payload=b"new", key="k"))
    assert not receipt.duplicate
    assert receipt.id > max(old.values())
    assert [store.get("q", message_id) for message_id in old.values()] == [None] * len(old)
    assert texts(store.export("q")) == ["new"]
    assert store.info().totals.pushed == 1


def test_dropping_one_queue_leaves_the_others(store: StoreUnderTest) -> None:
    fill(store)
    fill(store, "n/t/other")
    store.do(Drop(queue="q", force=True))
    assert store.counts("n/t/other") == EVERY_STATE
    assert texts(store.try_lease(scope="n", limit=9).messages) == ["released", "plain", "filed"]
