"""A lease, a take or a page returns only as many messages as fit in a response."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.core.commands import Lease
from penstock.core.model import LEASE_BYTES_MAX, Delivery, PushItem, State, StoredMessage
from tests.conformance.support import Clock, StoreUnderTest, push_command

THIRD = LEASE_BYTES_MAX // 3 + 1
FULL = 3


def fill(store: StoreUnderTest, names: str, queue: str = "q", **fields: int) -> None:
    for name in names:
        store.send(PushItem(payload=name.encode() * THIRD, **fields), queue=queue)


def first_letters(messages: Sequence[Delivery | StoredMessage]) -> str:
    return "".join(message.payload[:1].decode() for message in messages)


def test_a_lease_stops_when_the_response_is_full(store: StoreUnderTest) -> None:
    fill(store, "abcde")
    assert first_letters(store.lease(limit=10)) == "abc"
    assert store.counts()["ready"] == 2
    assert first_letters(store.lease(limit=10)) == "de"


def test_a_message_larger_than_the_limit_is_leased_alone(store: StoreUnderTest) -> None:
    store.send(PushItem(payload=bytes(LEASE_BYTES_MAX + 1)), PushItem(payload=b"small"))
    assert [len(message.payload) for message in store.lease(limit=10)] == [LEASE_BYTES_MAX + 1]
    assert [message.payload for message in store.lease(limit=10)] == [b"small"]


def test_messages_with_a_priority_count_towards_the_limit(store: StoreUnderTest) -> None:
    fill(store, "cdef")
    fill(store, "ab", priority=1)
    assert first_letters(store.lease(limit=10)) == "abc"
    assert first_letters(store.lease(limit=10)) == "def"


def test_leases_of_one_batch_share_the_limit_and_are_told_to_retry(store: StoreUnderTest) -> None:
    """A lease that got no room in the response is told to retry, not that the queue is empty."""
    fill(store, "abcdef")
    outcomes = store.apply([Lease(queue="q", limit=2) for _ in range(3)])
    assert [first_letters(outcome.messages) for outcome in outcomes] == ["ab", "c", ""]
    assert outcomes[2].more
    assert first_letters(store.lease(limit=10)) == "def"


def test_a_take_stops_when_the_response_is_full(store: StoreUnderTest) -> None:
    fill(store, "abcd")
    assert first_letters(store.take(limit=10).messages) == "abc"
    assert first_letters(store.take(limit=10).messages) == "d"


def test_a_lease_of_dead_letters_stops_when_the_response_is_full(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    fill(store, "abcd")
    for _ in range(2):
        store.nack(*store.lease(limit=10))
    assert first_letters(store.lease("q.dlq", limit=10)) == "abc"
    assert first_letters(store.lease("q.dlq", limit=10)) == "d"


@pytest.mark.parametrize("state", list(State))
def test_a_full_page_ends_early_and_the_next_one_continues(store: StoreUnderTest, state: State) -> None:
    store.make(max_attempts=1, archive_ms=None)
    fill(store, "abcd", **({"delay_ms": 1_000} if state is State.SCHEDULED else {}))
    if state in (State.LEASED, State.DEAD):
        leased = [*store.lease(limit=10), *store.lease(limit=10)]
        if state is State.DEAD:
            store.nack(*leased)
    elif state is State.ARCHIVED:
        store.take(limit=10)
        store.take(limit=10)
    first, after = store.peek("q", state=state, limit=10)
    rest, end = store.peek("q", state=state, limit=10, after=after)
    assert (len(first), len(rest), end) == (3, 1, None)
    assert sorted(first_letters([*first, *rest])) == [*"abcd"]
    assert sorted(first_letters(list(store.export("q")))) == [*"abcd"]


def test_a_full_page_of_mixed_priorities_ends_early(store: StoreUnderTest) -> None:
    fill(store, "cdef")
    fill(store, "ab", priority=1)
    first, after = store.peek("q", limit=10)
    rest, end = store.peek("q", limit=10, after=after)
    assert (first_letters(first), first_letters(rest)) == ("abc", "def")
    assert end is None or store.peek("q", limit=10, after=end) == ([], None)


@pytest.mark.parametrize("priority", [0, 1])
def test_a_lease_by_scope_stops_when_the_response_is_full(store: StoreUnderTest, clock: Clock, priority: int) -> None:
    for name, queue in [("a", "n/t/x"), ("b", "n/t/y"), ("c", "n/t/x"), ("d", "n/t/y"), ("e", "n/u/z")]:
        fill(store, name, queue, priority=priority)
        clock.advance(1)
    first = first_letters(store.try_lease(None, scope="n", limit=10).messages)
    second = first_letters(store.try_lease(None, scope="n", limit=10).messages)
    assert (len(first), sorted(first + second)) == (FULL, list("abcde"))


def test_small_messages_are_not_limited(store: StoreUnderTest) -> None:
    store.apply([push_command(str(number)) for number in range(100)])
    assert len(store.lease(limit=1_000)) == 100
