"""Reads that change nothing: peek, get, list, stats and export."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from penstock.core.commands import CatchUp, Remove
from penstock.core.model import Ages, Failure, State
from penstock.errors import InvalidInput, UnknownQueue
from penstock.store.sqlite.queries import SQL as READ
from penstock.store.sqlite.queries import SqliteQueries
from tests.conformance.support import MINUTE_MS, Clock, StoreUnderTest, ids, texts

COUNT = 23


def fill(store: StoreUnderTest, clock: Clock, state: State) -> list[int]:
    """Create many messages in one state, some with equal times, and return their ids in the order of peek."""
    store.make(max_attempts=1, archive_ms=None)
    found: list[int] = []
    for number in range(COUNT):
        delay_ms = 1_000 if state is State.SCHEDULED else None
        found += store.push(str(number), delay_ms=delay_ms, ttl_ms=None if number % 2 else 10**9)
        if state in (State.LEASED, State.DEAD):
            leased = store.lease_one()
            if state is State.DEAD:
                store.nack(leased)
        elif state is State.ARCHIVED:
            store.take()
        clock.advance(number % 3 // 2)
    return found[::-1] if state in (State.DEAD, State.ARCHIVED) else found


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("limit", [1, 7, COUNT, COUNT + 1])
def test_pages_hold_every_message_once_in_order(store: StoreUnderTest, clock: Clock, state: State, limit: int) -> None:
    expected = fill(store, clock, state)
    found = store.pages(state, limit=limit)
    assert ids(found) == expected
    assert {message.state for message in found} == {state}


@pytest.mark.parametrize("state", list(State))
def test_get_shows_what_peek_shows(store: StoreUnderTest, clock: Clock, state: State) -> None:
    fill(store, clock, state)
    for message in store.pages(state):
        assert store.get("q", message.id) == message


def test_pages_of_mixed_kinds_stay_in_order(store: StoreUnderTest, clock: Clock) -> None:
    for number in range(COUNT):
        store.push(str(number), priority=number % 5 - 2, ttl_ms=10**9 if number % 2 else None)
        clock.advance(number % 3 // 2)
    everything = store.peek("q", limit=COUNT + 1)[0]
    assert everything == sorted(everything, key=lambda m: (-m.priority, m.available_at, m.id))
    for limit in (1, 2, 5):
        assert store.pages(State.READY, limit=limit) == everything


def test_a_page_continues_where_the_last_one_ended_though_messages_left(store: StoreUnderTest) -> None:
    found = store.push(*map(str, range(6)))
    page, after = store.peek("q", limit=3)
    store.lease(limit=2)
    store.do(Remove(queue="q", ids=[found[3]]))
    rest, _ = store.peek("q", limit=3, after=after)
    assert texts(page + rest) == ["0", "1", "2", "4", "5"]


def test_peek_and_get_change_nothing(store: StoreUnderTest) -> None:
    (message_id,) = store.push("a")
    before = store.info()
    message = store.peek("q")[0][0]
    assert (message.attempts, message.first_leased_at) == (0, None)
    assert store.get("q", message_id) == message
    assert store.info() == before


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("after", ["", "x", "1", "1:x", "1:2:3", "1:2:3:4:5", f"{10**30}:1"])
def test_an_invalid_cursor_is_refused(store: StoreUnderTest, state: State, after: str) -> None:
    store.make()
    with pytest.raises(InvalidInput) as refused:
        store.peek("q", state=state, after=after)
    assert refused.value.field == "after"


def test_reading_an_unknown_queue_fails(store: StoreUnderTest) -> None:
    for look in (store.peek, store.stats, lambda queue: list(store.export(queue)), lambda q: store.get(q, 1)):
        with pytest.raises(UnknownQueue):
            look("none")
    assert store.find_queue("none") is None


def test_get_returns_none_for_a_missing_message(store: StoreUnderTest) -> None:
    (elsewhere,) = store.push("a", queue="other")
    store.push("b", priority=1)
    for message_id in (0, -1, 99, elsewhere, 1 << 44, 1 << 44 | 2, 2**70):
        assert store.get("q", message_id) is None


def test_a_message_shows_its_times_and_errors(store: StoreUnderTest, clock: Clock) -> None:
    pushed_at = clock.now
    (message_id,) = store.push("a", ttl_ms=1_000)
    clock.advance(5)
    store.nack(store.lease_one(), delay_ms=10, error="oops")
    message = store.get("q", message_id)
    assert (message.created_at, message.first_leased_at, message.available_at) == (
        pushed_at,
        pushed_at + 5,
        pushed_at + 15,
    )
    assert (message.attempts, message.expires_at) == (1, pushed_at + 1_000)
    assert message.errors == [Failure(1, pushed_at + 5, "oops")]


def test_queues_are_listed_by_name_in_pages(store: StoreUnderTest) -> None:
    names = [f"a{number:02}" for number in range(12)] + ["b/t/x", "b/t/y", "b0", "B", "_"]
    for name in names:
        store.make(name)
    found: list[str] = []
    while page := store.list_queues(after=found[-1] if found else None, limit=5):
        found += [info.name for info in page]
    assert found == sorted(names)
    assert [info.name for info in store.list_queues(prefix="b/")] == ["b/t/x", "b/t/y"]
    assert [info.name for info in store.list_queues(prefix="a1", after="a10")] == ["a11"]
    assert store.list_queues(prefix="%") == []
    assert [info.name for info in store.list_queues(prefix="_")] == ["_"]


def test_a_listed_queue_has_its_counters(store: StoreUnderTest) -> None:
    store.push("a", "b")
    store.lease()
    assert store.list_queues() == [store.info()]
    assert (store.info().ready, store.info().leased) == (1, 1)


def test_every_event_is_counted_once(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=2)
    store.push(*"abcd", ttl_ms=1_000)
    a, b, c, _ = store.lease(limit=4, lease_ms=10)
    store.ack(a)
    store.nack(b, delay_ms=0)
    store.nack(store.lease_one(), delay_ms=0)
    store.redrive()
    store.release(c)
    clock.advance(10)
    store.sweep()
    clock.advance(1_000)
    store.push("x", "y")
    store.do(Remove(queue="q", ids=ids(store.peek("q", limit=9)[0])[-1:]))
    store.sweep()
    totals = store.info().totals
    assert (totals.pushed, totals.leased, totals.acked, totals.nacked) == (6, 5, 1, 2)
    assert (totals.lapsed, totals.dead, totals.redriven, totals.removed, totals.expired) == (1, 1, 1, 1, 3)


def ages(store: StoreUnderTest) -> tuple[int | None, int | None]:
    stats = store.stats("q")
    assert store.ages(["none", "q"]) == {"q": Ages(stats.head_age_ms, stats.oldest_age_ms)}
    return stats.head_age_ms, stats.oldest_age_ms


def test_the_head_age_is_that_of_the_message_leased_next(store: StoreUnderTest, clock: Clock) -> None:
    store.make()
    assert ages(store) == (None, None)
    store.push("a")
    clock.advance(70)
    store.push("b")
    assert ages(store) == (70, 70)
    store.lease()
    clock.advance(5)
    assert ages(store) == (5, 5)


def test_the_oldest_age_is_that_of_the_oldest_message_whatever_its_priority(
    store: StoreUnderTest, clock: Clock
) -> None:
    store.push("lowest", priority=-(2**31) + 1)
    clock.advance(10)
    store.push("plain")
    clock.advance(10)
    store.push("urgent", priority=5)
    clock.advance(10)
    assert ages(store) == (10, 30)
    store.lease()
    assert ages(store) == (20, 30)
    store.lease()
    assert ages(store) == (30, 30)


def test_an_alert_is_raised_while_the_oldest_ready_message_is_older_than_the_queue_allows(
    store: StoreUnderTest, clock: Clock
) -> None:
    store.make(max_age_alert_ms=50)
    assert not store.stats("q").age_alert
    store.push("old", priority=-1)
    clock.advance(50)
    store.push("urgent")
    assert not store.stats("q").age_alert
    clock.advance(1)
    assert store.stats("q").age_alert
    store.make(max_age_alert_ms=None)
    assert not store.stats("q").age_alert
    store.make(max_age_alert_ms=1)
    store.lease(limit=2)
    assert not store.stats("q").age_alert


def test_a_message_that_was_retried_keeps_its_age(store: StoreUnderTest, clock: Clock) -> None:
    store.push("retried")
    store.nack(store.lease_one(), delay_ms=20)
    clock.advance(10)
    store.push("first now", ttl_ms=10**9)
    clock.advance(10)
    store.push("plain")
    clock.advance(10)
    store.do(CatchUp(queue="q"))
    assert texts(store.peek("q", limit=3)[0]) == ["first now", "retried", "plain"]
    assert ages(store) == (20, 30)


def test_ages_count_only_messages_that_are_ready(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1, archive_ms=None)
    store.bury("dead", priority=1)
    store.push("archived", priority=1)
    store.take()
    store.push("leased", priority=1)
    store.lease()
    store.push("scheduled", delay_ms=10**6)
    clock.advance(50)
    assert ages(store) == (None, None)
    store.push("ready", priority=1)
    clock.advance(1)
    assert ages(store) == (1, 1)


def test_an_idle_store_is_writable(store: StoreUnderTest) -> None:
    store.push("x")
    assert store.write_obstacle() is None
    assert store.commits() == store.commits()


def test_a_store_locked_by_another_process_is_not_writable(on_file: StoreUnderTest) -> None:
    with closing(sqlite3.connect(on_file.path, isolation_level=None)) as other:
        before = on_file.commits()
        other.execute("BEGIN IMMEDIATE")
        assert "holds the write lock" in on_file.write_obstacle()
        other.execute("CREATE TABLE theirs (number INTEGER)")
        other.execute("COMMIT")
        assert on_file.commits() != before
    assert on_file.write_obstacle() is None


def test_reading_ages_costs_the_same_at_any_depth(on_file: StoreUnderTest) -> None:
    def steps() -> int:
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        with closing(sqlite3.connect(on_file.path)) as connection:
            queue = SqliteQueries(connection, on_file.store_id, 0).queue("q")
            connection.set_progress_handler(count, 1)
            connection.execute(READ["waiting"], (queue.id, queue.cursor, queue.plain_end)).fetchall()
        return counted[0]

    on_file.push("plain")
    on_file.push("other", priority=1)
    few = steps()
    for number in range(100):
        on_file.push(*map(str, range(10)), priority=number - 50)
    assert steps() == few


def test_rates_are_over_the_last_whole_minutes_and_this_one(store: StoreUnderTest, clock: Clock) -> None:
    store.push(*["x"] * 60)
    clock.advance(MINUTE_MS)
    store.push(*["x"] * 30)
    clock.advance(MINUTE_MS // 2)
    rates = store.stats("q").rates
    assert rates["1m"]["pushed"] == pytest.approx(90 / 90, abs=0.01)
    assert rates["5m"]["pushed"] == pytest.approx(90 / 330, abs=0.01)
    clock.advance(MINUTE_MS)
    rates = store.stats("q").rates
    assert rates["1m"]["pushed"] == pytest.approx(30 / 90, abs=0.01)
    assert rates["5m"]["pushed"] == pytest.approx(90 / 330, abs=0.01)
    assert rates["1m"]["leased"] == 0


def test_a_rate_falls_to_zero_when_traffic_stops(store: StoreUnderTest, clock: Clock) -> None:
    store.push(*["x"] * 60)
    clock.advance(20 * MINUTE_MS)
    assert {rates["pushed"] for rates in store.stats("q").rates.values()} == {0}
    store.lease()
    clock.advance(2 * MINUTE_MS)
    rates = store.stats("q").rates
    assert (rates["1m"]["leased"], rates["15m"]["pushed"]) == (0, 0)
    assert rates["5m"]["leased"] > 0


def test_an_export_holds_everything_once(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1, archive_ms=None)
    store.bury("dead")
    store.push("archived")
    store.take()
    store.push("leased")
    store.lease()
    store.push(*map(str, range(2_100)))
    store.push("filed", priority=1)
    store.push("scheduled", delay_ms=5)
    found = list(store.export("q"))
    assert len({message.id for message in found}) == len(found) == 2_105
    assert {message.payload.decode(): message.state for message in found if message.payload.isalpha()} == {
        "dead": "dead",
        "archived": "archived",
        "leased": "leased",
        "filed": "ready",
        "scheduled": "scheduled",
    }
