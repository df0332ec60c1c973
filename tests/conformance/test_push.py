"""Pushes: ids, times, keys, batches and limits."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.core.commands import Drop, Push, Remove
from penstock.core.ids import message_id_of
from penstock.core.model import Content, PushItem, QueueOptions, State
from penstock.errors import PenstockError, QueueFull, RateLimited, UnknownQueue
from tests.conformance.support import MINUTE_MS, Clock, StoreUnderTest, texts


def keyed(key: str | None, payload: bytes = b"x") -> PushItem:
    return PushItem(payload=payload, key=key)


def test_a_message_is_leased_as_it_was_pushed(store: StoreUnderTest) -> None:
    new = PushItem(
        payload=b"\x00\xff", content=Content.JSON, priority=7, key="k", headers={"a": "ä", "b": ""}, ttl_ms=5_000
    )
    (receipt,) = store.send(new)
    leased = store.lease_one()
    assert (leased.payload, leased.content, leased.priority) == (b"\x00\xff", Content.JSON, 7)
    assert (leased.key, leased.headers) == ("k", {"a": "ä", "b": ""})
    assert (leased.id, leased.uuid, leased.created_at) == (receipt.id, receipt.uuid, receipt.created_at)
    assert (leased.queue, leased.attempts) == ("q", 1)


def test_an_empty_payload_is_valid(store: StoreUnderTest) -> None:
    store.push("")
    assert store.lease_one().payload == b""


@pytest.mark.parametrize("count", [2, 3, 63, 64, 65, 100, 257])
@pytest.mark.parametrize("content", Content)
def test_a_batch_of_any_size_keeps_its_order(store: StoreUnderTest, clock: Clock, count: int, content: Content) -> None:
    batch = [PushItem(payload=bytes([number & 255]) * (number % 3), content=content) for number in range(count)]
    receipts = store.send(*batch)
    clock.advance(-10)
    receipts += store.send(*batch)
    leased = store.lease(limit=2 * count)
    assert [(each.payload, each.content) for each in leased] == [(each.payload, content) for each in 2 * batch]
    assert [(each.id, each.created_at) for each in leased] == [(each.id, each.created_at) for each in receipts]
    assert store.info().totals.pushed == 2 * count


@pytest.mark.parametrize("other", [{"key": "k"}, {"headers": {"a": "b"}}, {"content": Content.JSON}, {"priority": 1}])
def test_one_message_that_differs_keeps_its_fields_in_a_batch(store: StoreUnderTest, other: dict[str, Any]) -> None:
    batch = [PushItem(payload=b"1"), PushItem(payload=b"2", **other), PushItem(payload=b"3")]
    store.send(*batch)
    leased = {each.payload: each for each in store.lease(limit=3)}
    for each in batch:
        found = leased[each.payload]
        assert (found.key, found.headers, found.content) == (each.key, each.headers, each.content)
        assert found.priority == each.priority


def test_a_batch_of_large_messages_is_stored(store: StoreUnderTest) -> None:
    batch = [PushItem(payload=bytes([number]) * 300_000) for number in range(5)]
    store.send(*batch)
    assert [each.payload for each in store.lease(limit=5)] == [each.payload for each in batch]


def test_ids_grow_with_every_push_in_every_queue(store: StoreUnderTest) -> None:
    found = [*store.push("a", "b"), *store.push("c", queue="other"), *store.push("d"), *store.push("e", priority=3)]
    assert found == sorted(set(found))


def test_ids_are_never_reused_even_after_removal(store: StoreUnderTest) -> None:
    first = store.push("a", "b")
    store.do(Remove(queue="q", ids=first))
    assert min(store.push("c")) > max(first)


def test_uuids_sort_by_time_and_convert_back_to_their_id(store: StoreUnderTest, clock: Clock) -> None:
    receipts = []
    for _ in range(5):
        receipts += store.send(PushItem(payload=b"a"), PushItem(payload=b"b", priority=1))
        clock.advance(1)
    assert [r.uuid for r in receipts] == sorted({r.uuid for r in receipts})
    assert [message_id_of(r.uuid, store.store_id) for r in receipts] == [r.id for r in receipts]
    assert uuid.UUID(receipts[0].uuid).version == 7
    assert message_id_of(receipts[0].uuid, store.store_id ^ 1) is None
    assert message_id_of(str(uuid.uuid4()), store.store_id) is None


def test_a_push_to_an_unknown_queue_is_refused_unless_it_may_create(store: StoreUnderTest) -> None:
    with pytest.raises(UnknownQueue):
        store.do(Push(queue="q", messages=[PushItem(payload=b"x")]))
    store.do(Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions(lease_ms=7)))
    assert store.info().options.lease_ms == 7


def test_create_leaves_an_existing_queue_unchanged(store: StoreUnderTest) -> None:
    store.make(lease_ms=7)
    store.push("a")
    assert store.info().options.lease_ms == 7


def test_a_delayed_message_is_leased_when_due_and_not_before(store: StoreUnderTest, clock: Clock) -> None:
    (message_id,) = store.push("late", delay_ms=100)
    assert store.state(message_id) is State.SCHEDULED
    clock.advance(99)
    assert store.lease() == []
    clock.advance(1)
    assert texts(store.lease()) == ["late"]


def test_the_queues_delay_applies_unless_the_message_has_its_own(store: StoreUnderTest) -> None:
    store.make(delay_ms=100)
    store.push("queue's")
    store.push("own", delay_ms=0)
    assert store.drain() == ["own"]


def test_a_changed_delay_or_ttl_applies_only_to_later_pushes(store: StoreUnderTest, clock: Clock) -> None:
    store.push("before")
    store.make(delay_ms=100, ttl_ms=50)
    store.push("after")
    clock.advance(1_000)
    assert store.drain() == ["before"]


def test_an_expired_message_is_never_leased(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", ttl_ms=10)
    store.push("scheduled", ttl_ms=10, delay_ms=5)
    store.push("b", ttl_ms=11)
    clock.advance(10)
    assert texts(store.lease(limit=3)) == ["b"]
    assert store.counts() == {"leased": 1}
    assert store.info().totals.expired == 2


def test_a_repeated_key_returns_the_first_receipt(store: StoreUnderTest, clock: Clock) -> None:
    (first,) = store.send(keyed("k", b"first"))
    clock.advance(5)
    (again,) = store.send(keyed("k", b"again"))
    assert again.duplicate
    assert not first.duplicate
    assert (again.id, again.uuid, again.created_at) == (first.id, first.uuid, first.created_at)
    assert store.drain() == ["first"]
    assert store.info().totals.pushed == 1


def test_duplicate_keys_within_one_batch_are_found(store: StoreUnderTest) -> None:
    (old,) = store.send(keyed("old"))
    receipts = store.send(keyed("a"), keyed(None), keyed("old"), keyed("a"), keyed("b"), keyed("a"))
    assert [r.duplicate for r in receipts] == [False, False, True, True, False, True]
    assert receipts[2].id == old.id
    assert receipts[3].id == receipts[5].id == receipts[0].id
    assert store.counts() == {"ready": 4}


def test_a_duplicate_is_found_after_the_ack_within_the_window(store: StoreUnderTest, clock: Clock) -> None:
    store.make(dedupe_ms=100)
    (first,) = store.send(keyed("k"))
    store.ack(store.lease_one())
    clock.advance(99)
    assert [r.id for r in store.send(keyed("k"))] == [first.id]
    clock.advance(1)
    (fresh,) = store.send(keyed("k"))
    assert not fresh.duplicate
    assert fresh.id > first.id


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "dead"])
def test_a_key_outlives_its_window_while_the_message_is_unfinished(
    store: StoreUnderTest, clock: Clock, state: str
) -> None:
    store.make(dedupe_ms=10, max_attempts=1)
    store.send(PushItem(payload=b"x", key="k", delay_ms=50 if state == "scheduled" else 0))
    if state in ("leased", "dead"):
        leased = store.lease_one()
        if state == "dead":
            store.nack(leased)
    clock.advance(20)
    store.sweep()
    assert store.counts() == {state: 1}
    assert store.send(keyed("k"))[0].duplicate


def test_an_archived_message_keeps_its_key_only_for_the_window(store: StoreUnderTest, clock: Clock) -> None:
    store.make(dedupe_ms=10, archive_ms=None)
    store.send(keyed("k"))
    store.take()
    assert store.send(keyed("k"))[0].duplicate
    clock.advance(10)
    assert not store.send(keyed("k"))[0].duplicate


def test_the_sweep_deletes_keys_only_after_window_and_message(store: StoreUnderTest, clock: Clock) -> None:
    store.make(dedupe_ms=10)
    store.send(keyed("undone"), keyed("gone"))
    undone, gone = store.lease(limit=2)
    store.ack(gone)
    clock.advance(10)
    assert store.sweep().forgotten == 1
    assert [r.duplicate for r in store.send(keyed("undone"), keyed("gone"))] == [True, False]
    store.ack(undone)


def test_keys_are_per_queue_unless_global(store: StoreUnderTest) -> None:
    store.send(keyed("k"), queue="a")
    assert not store.send(keyed("k"), queue="b")[0].duplicate
    (first,) = store.send(keyed("k"), queue="a", global_keys=True)
    (second,) = store.send(keyed("k"), queue="a", global_keys=True)
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)


@pytest.mark.parametrize("queue", ["b", "new"])
def test_a_global_key_of_another_queue_is_refused_with_an_error(store: StoreUnderTest, queue: str) -> None:
    store.make("b")
    store.send(keyed("k"), queue="a", global_keys=True)
    with pytest.raises(PenstockError) as refused:
        store.send(keyed("free"), keyed("k"), queue=queue, global_keys=True)
    assert refused.value.code == "key_taken"
    assert "'a'" not in str(refused.value)
    found = store.find_queue(queue)
    assert found is None if queue == "new" else found is not None and found.ready == 0
    assert not store.send(keyed("free"), queue="b", global_keys=True)[0].duplicate


@pytest.mark.parametrize("end", ["acked", "held"])
@pytest.mark.parametrize("aim", ["a/b/first", "a/b/other"])
def test_dropping_a_queue_frees_its_global_keys(store: StoreUnderTest, end: str, aim: str) -> None:
    store.send(keyed("other"), queue="a/b/other", global_keys=True)
    (first,) = store.send(keyed("k"), queue="a/b/first", global_keys=True)
    if end == "acked":
        store.ack(store.lease_one("a/b/first"))
    store.do(Drop(queue="a/b/first", force=True))
    store.make("a/b/first")
    (again,) = store.send(keyed("k"), queue=aim, global_keys=True)
    assert (again.duplicate, again.id > first.id) == (False, True)
    assert store.locate(["k"]) == [(aim, again.id)]
    for key, home in (("k", aim), ("other", "a/b/other")):
        assert store.send(keyed(key), queue=home, global_keys=True)[0].duplicate


def test_a_push_of_only_duplicates_changes_nothing(store: StoreUnderTest, clock: Clock) -> None:
    store.make(window_ms=10)
    store.send(keyed("k"))
    clock.advance(9)
    store.send(keyed("k"))
    clock.advance(1)
    assert len(store.lease()) == 1


def test_a_full_queue_refuses_the_whole_batch(store: StoreUnderTest) -> None:
    store.make(max_size=3)
    store.push("a", "b")
    store.lease()
    with pytest.raises(QueueFull) as refused:
        store.push("c", "d")
    assert refused.value.retry_after_ms > 0
    assert store.counts() == {"ready": 1, "leased": 1}
    store.push("c")


def test_a_full_queue_still_finds_duplicates(store: StoreUnderTest) -> None:
    store.send(keyed("k"), keyed("l"))
    store.make(max_size=1)
    assert store.send(keyed("k"))[0].duplicate


def test_finished_and_dead_messages_do_not_count_against_max_size(store: StoreUnderTest) -> None:
    store.make(max_size=1, max_attempts=1, archive_ms=None)
    store.bury("dead")
    store.push("done")
    store.take()
    store.push("next")
    assert store.counts() == {"ready": 1, "dead": 1, "archived": 1}


def test_a_refused_push_leaves_no_queue_behind(store: StoreUnderTest) -> None:
    push = Push(queue="new", messages=[keyed(None), keyed(None)], create=QueueOptions(max_size=1))
    assert isinstance(store.apply([push])[0], QueueFull)
    assert store.find_queue("new") is None


def test_the_push_rate_allows_a_burst_and_then_its_rate(store: StoreUnderTest, clock: Clock) -> None:
    store.make(push_rate=10, push_burst=3)
    store.push("a", "b", "c")
    with pytest.raises(RateLimited) as refused:
        store.push("d")
    assert 0 < refused.value.retry_after_ms <= 101
    clock.advance(refused.value.retry_after_ms)
    store.push("d")
    with pytest.raises(RateLimited):
        store.push("e")
    assert store.counts() == {"ready": 4}


def test_the_smallest_positive_rate_is_valid(store: StoreUnderTest) -> None:
    store.make(push_rate=5e-324)
    store.push("a")
    with pytest.raises(RateLimited) as refused:
        store.push("b")
    assert refused.value.retry_after_ms == 24 * 60 * MINUTE_MS + 1


def test_a_batch_beyond_the_burst_passes_once_and_delays_later_pushes(store: StoreUnderTest, clock: Clock) -> None:
    store.make(push_rate=1, push_burst=2)
    store.push("a", "b", "c", "d")
    clock.advance(2_999)
    with pytest.raises(RateLimited):
        store.push("e")
    clock.advance(1)
    store.push("e")


def test_a_repeated_request_adds_nothing(store: StoreUnderTest) -> None:
    request = Push(queue="q", messages=[keyed(None), keyed("k"), keyed(None)], request_key="r")
    store.send()
    (first,) = store.apply([request])
    (again,) = store.apply([request])
    assert [receipt.duplicate for receipt in first.receipts] == [False] * 3
    assert [receipt.duplicate for receipt in again.receipts] == [True] * 3
    assert [receipt.id for receipt in again.receipts] == [receipt.id for receipt in first.receipts]
    assert store.info().ready == 3


def test_a_repeated_request_is_recognised_for_a_while_after_its_messages_are_gone(
    store: StoreUnderTest, clock: Clock
) -> None:
    request = Push(queue="q", messages=[keyed(None)], request_key="r")
    store.send()
    (first,) = store.apply([request])
    store.apply([Remove(queue="q", ids=[first.receipts[0].id])])
    (again,) = store.apply([request])
    assert again.receipts[0].duplicate
    store.sweep()
    clock.advance(15 * MINUTE_MS)
    store.sweep()
    (later,) = store.apply([request])
    assert not later.receipts[0].duplicate


def test_a_repeated_request_is_recognised_though_the_clock_was_set_ahead(store: StoreUnderTest, clock: Clock) -> None:
    request = Push(queue="q", messages=[keyed(None)], request_key="r")
    store.send()
    (first,) = store.apply([request])
    store.sweep()
    for _ in range(3):
        clock.set(clock.now + 60 * MINUTE_MS)
        store.sweep()
        clock.advance(4 * MINUTE_MS)
        store.sweep()
        (again,) = store.apply([request])
        assert again.receipts[0].duplicate
        assert again.receipts[0].id == first.receipts[0].id


def test_a_repeated_request_is_recognised_after_a_restart_with_the_clock_set_ahead(
    shared: StoreUnderTest, clock: Clock
) -> None:
    request = Push(queue="q", messages=[keyed(None)], request_key="r")
    shared.send()
    shared.apply([request])
    clock.set(clock.now + 60 * MINUTE_MS)
    shared.reopen()
    shared.sweep()
    (again,) = shared.apply([request])
    assert again.receipts[0].duplicate
    assert shared.info().ready == 1


def test_a_clock_that_is_set_back_does_not_stop_a_queue_with_a_rate(store: StoreUnderTest, clock: Clock) -> None:
    store.make(push_rate=10.0, push_burst=1)
    store.push("a")
    clock.set(clock.now - 3_600_000)
    clock.advance(10_000)
    store.push("b")
    assert store.counts() == {"ready": 2}


def test_a_command_that_cannot_be_stored_fails_alone(store: StoreUnderTest) -> None:
    store.make()
    good = [Push(queue="q", messages=[PushItem(payload=b"x", key=key)]) for key in ("1", "2")]
    bad = Push(queue="q", messages=[PushItem(payload=b"x")], request_key="a\0b")
    first, _, second = store.store.apply([good[0], bad, good[1]])
    assert [receipt.duplicate for pushed in (first, second) for receipt in pushed.receipts] == [False, False]


def test_a_request_repeated_with_more_messages_is_recognised(store: StoreUnderTest) -> None:
    store.make()
    [first] = store.do(Push(queue="q", messages=[PushItem(payload=b"1")], request_key="R")).receipts
    more = [PushItem(payload=b"1"), PushItem(payload=b"2", key="x")]
    for _ in range(2):
        found = store.do(Push(queue="q", messages=more, request_key="R")).receipts
        assert (found[0].id, found[0].duplicate) == (first.id, True)
    assert store.counts() == {"ready": 2}
