"""Roll-ups and latencies cover exactly the requested time window."""

from __future__ import annotations

from penstock.core.commands import Sweep
from penstock.core.model import Depth, RollUp, Span, Totals, Window
from tests.conformance.support import MINUTE_MS, START_MS, Clock, StoreUnderTest

NOW = START_MS // MINUTE_MS
DAY_MINUTES = 24 * 60


def history(store: StoreUnderTest, window: Window, queue: str = "q") -> RollUp:
    (found,) = [each for each in store.roll_ups(window) if each.info.name == queue]
    return found


def test_a_step_has_its_totals_and_the_depth_at_its_end(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    store.push("a", "b", "c", "d")
    store.ack(store.lease_one())
    clock.advance(2 * MINUTE_MS)
    store.nack(store.lease_one(), error="broken")
    store.lease_one()
    clock.advance(MINUTE_MS)
    store.push("later")
    found = history(store, Window(NOW, NOW + 3, 1))
    assert found.before == Depth()
    assert found.spans == [
        Span(NOW, Totals(pushed=4, leased=1, acked=1), Depth(ready=3)),
        Span(NOW + 2, Totals(leased=2, nacked=1, dead=1), Depth(ready=1, leased=1, dead=1)),
    ]
    assert found.info == store.info()


def test_steps_start_at_the_beginning_of_the_window(store: StoreUnderTest, clock: Clock) -> None:
    for _ in range(10):
        store.push("x")
        clock.advance(MINUTE_MS)
    found = history(store, Window(NOW + 1, NOW + 9, 3))
    assert found.before == Depth(ready=1)
    assert [(span.minute - NOW, span.happened.pushed, span.depth.ready) for span in found.spans] == [
        (1, 3, 4),
        (4, 3, 7),
        (7, 2, 9),
    ]


def test_the_current_minute_and_swept_counters_are_included(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    store.sweep()
    store.push("b")
    assert history(store, Window(NOW, NOW + 1, 1)).spans == [Span(NOW, Totals(pushed=2), Depth(ready=2))]
    clock.advance(5 * MINUTE_MS)
    assert history(store, Window(NOW, NOW + 6, 6)).spans == [Span(NOW, Totals(pushed=2), Depth(ready=2))]


def test_a_quiet_queue_keeps_its_depth(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    clock.advance(5 * MINUTE_MS)
    found = history(store, Window(NOW + 2, NOW + 5, 1))
    assert (found.before, found.spans) == (Depth(ready=1), [])
    found = history(store, Window(NOW - 5, NOW, 1))
    assert (found.before, found.spans) == (Depth(), [])


def test_forgotten_minutes_are_not_added_to_later_ones(store: StoreUnderTest, clock: Clock) -> None:
    store.push("old", "older")
    clock.advance(5 * DAY_MINUTES * MINUTE_MS)
    store.push("new")
    store.do(Sweep(minutes_kept=3 * DAY_MINUTES))
    clock.advance(MINUTE_MS)
    store.push("newer")
    found = history(store, Window(NOW + 1, NOW + 6 * DAY_MINUTES, 6 * DAY_MINUTES))
    assert found.before == Depth(ready=2)
    assert found.spans == [Span(NOW + 1, Totals(pushed=2), Depth(ready=4))]


def test_old_minutes_of_an_idle_queue_are_deleted_too(store: StoreUnderTest, clock: Clock) -> None:
    for _ in range(4):
        for queue in ("q", "other"):
            store.push("x", queue=queue)
            store.ack(store.lease_one(queue))
        store.sweep()
        clock.advance(MINUTE_MS)
    clock.advance(31 * DAY_MINUTES * MINUTE_MS)
    store.sweep()
    assert history(store, Window(NOW, NOW + 2, 1)).spans == []
    (latencies,) = [each for each in store.latencies(Window(NOW, NOW + 4, 1)) if each.queue == "q"]
    assert latencies.by_minute == {}


def test_roll_ups_are_listed_by_name_in_pages(store: StoreUnderTest) -> None:
    for queue in ("b/t/q", "a/t/q", "b/t/r", "flat"):
        store.push("x", queue=queue)
    window = Window(NOW, NOW + 1, 1)
    assert [each.info.name for each in store.roll_ups(window, limit=2)] == ["a/t/q", "b/t/q"]
    assert [each.info.name for each in store.roll_ups(window, after="b/t/q")] == ["b/t/r", "flat"]
    assert [each.info.name for each in store.roll_ups(window, prefix="b/")] == ["b/t/q", "b/t/r"]
    assert store.roll_ups(window, prefix="c/") == []
    assert store.latencies(window, prefix="c/") == []


def test_latencies_cover_the_window_by_queue(store: StoreUnderTest, clock: Clock) -> None:
    for wait_ms, service_ms, queue in ((100, 3, "a"), (2_000, 50, "b")):
        store.push("x", queue=queue)
        clock.advance(wait_ms)
        leased = store.lease_one(queue)
        clock.advance(service_ms)
        store.ack(leased)
    store.sweep()
    clock.advance(10 * MINUTE_MS)
    fast, slow = (each.latency for each in store.latencies(Window(NOW, NOW + 1, 1)))
    assert fast["service_ms"] == {"p50": 3, "p95": 3, "p99": 3}
    assert slow["wait_ms"]["p50"] > 10 * fast["wait_ms"]["p50"]
    assert fast["wait_ms"]["p99"] <= fast["total_ms"]["p50"] < slow["wait_ms"]["p50"] <= slow["total_ms"]["p50"]
    later, _ = store.latencies(Window(NOW + 1, NOW + 9, 1))
    assert (later.latency["total_ms"], later.by_minute) == (dict.fromkeys(("p50", "p95", "p99")), {})


def test_latencies_of_a_window_are_also_given_by_step(store: StoreUnderTest, clock: Clock) -> None:
    for wait_ms in (3, 5, 7):
        store.push("x")
        clock.advance(wait_ms)
        store.ack(store.lease_one())
        store.sweep()
        clock.advance(2 * MINUTE_MS)
    (found,) = store.latencies(Window(NOW - 1, NOW + 10, 4))
    assert {minute - NOW: latency["wait_ms"]["p50"] for minute, latency in found.by_minute.items()} == {-1: 3, 3: 7}
    assert found.latency["wait_ms"]["p50"] == 5
