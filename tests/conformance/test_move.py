"""Messages move to another queue atomically."""

from __future__ import annotations

import pytest

from penstock.core.commands import Move, MoveItem, Transact
from penstock.core.model import PushItem, State
from penstock.errors import UnknownQueue
from tests.conformance.support import Clock, StoreUnderTest, texts


def move(store: StoreUnderTest, ids: list[int], state: State = State.DEAD, target: str = "other") -> int:
    items = [MoveItem(each, PushItem(payload=b"moved %d" % each, delay_ms=0)) for each in ids]
    moved: int = store.do(Move(queue="q", target=target, state=state, items=items)).removed
    return moved


@pytest.mark.parametrize("target", ["other", "ns/task/other"])
def test_dead_letters_move_in_the_given_order_as_new_messages(store: StoreUnderTest, target: str) -> None:
    store.make(max_attempts=1)
    store.make(target, max_size=1, delay_ms=1_000)
    first, second = store.bury("a", "b")
    assert move(store, [second, first], target=target) == 2
    assert store.counts() == {}
    assert (store.info().totals.removed, store.info(target).totals.pushed) == (2, 2)
    leased = store.lease(target, limit=5)
    assert (texts(leased), [each.attempts for each in leased]) == ([f"moved {second}", f"moved {first}"], [1, 1])


@pytest.mark.parametrize("state", [State.READY, State.SCHEDULED])
def test_waiting_messages_move_too(store: StoreUnderTest, state: State) -> None:
    store.make("other")
    plain, filed = store.push("plain") + store.push("filed", priority=1)
    later = store.push("later", delay_ms=10)
    wanted = later if state is State.SCHEDULED else [plain, filed]
    assert move(store, [plain, filed, *later], state) == len(wanted)
    assert store.info("other").ready == len(wanted)
    assert [store.state(each) for each in wanted] == [None] * len(wanted)


def test_messages_in_another_state_stay_and_none_moves_twice(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.make("other")
    store.bury("a", "b")
    (held,) = store.lease("q.dlq")
    (dead,) = [each.id for each in store.pages(State.DEAD)]
    ready = store.push("c")
    assert move(store, [dead, held.id, *ready, 99, -1, 2**60]) == 1
    assert move(store, [dead, held.id, *ready]) == 0
    assert store.counts() == {"ready": 1, "leased": 1}
    assert store.counts("other") == {"ready": 1}


def test_nothing_moves_if_the_target_is_missing(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    (dead,) = store.bury("a")
    with pytest.raises(UnknownQueue):
        move(store, [dead])
    with pytest.raises(UnknownQueue):
        store.do(Transact(commands=[Move(queue="q", target="other", state=State.DEAD, items=[])]))
    assert store.state(dead) is State.DEAD


def test_queues_that_name_a_dead_letter_queue_are_found(store: StoreUnderTest) -> None:
    for name, dlq in (("a", "other"), ("b", "other"), ("c", "another"), ("d", True), ("other", True)):
        store.make(name, dlq=dlq, max_attempts=1)
    assert sorted(store.forwarders("other")) == ["a", "b"]
    assert store.forwarders() == []
    store.bury("x", queue="a")
    store.bury("x", queue="d")
    assert store.forwarders() == ["a"]


def test_an_export_of_dead_letters_contains_nothing_else(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("dead")
    store.push("ready")
    assert texts(store.export("q.dlq")) == ["dead"]
    assert sorted(texts(store.export("q"))) == ["dead", "ready"]
