"""Journal events about whole queues: created, changed and deleted, and the depth of each queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from penstock.core.commands import Drop
from penstock.core.model import State
from penstock.journal.drainer import journal_folder
from penstock.store.postgres.transaction import ALIVE, CREATING
from penstock.store.sqlite import SqliteStore
from tests.conformance.postgres_support import PostgresUnderTest, events_of
from tests.conformance.replay import log_events
from tests.conformance.support import StoreUnderTest, eventually, push_command
from tests.conformance.test_admin import EVERY_STATE, fill

HELD = {"waiting": 4, "leased": 2, "dead": 1}
NOTHING = {"waiting": 0, "leased": 0, "dead": 0}


def queue_events(store: StoreUnderTest) -> list[dict[str, Any]]:
    """Return the details of all queue events except creation and changed options."""
    found = [event.details for event in events_of(store) if event.kind == "queue"]
    return [details for details in found if details["what"] not in ("created", "changed")]


def test_leaving_and_reentering_the_journal_records_the_depth(
    journalled: StoreUnderTest,
) -> None:
    fill(journalled)
    journalled.make(journal="meta")
    journalled.make(journal="off")
    journalled.push("untold", "untold too")
    journalled.make(journal="off", lease_ms=9)
    journalled.make(journal="full")
    more = {**HELD, "waiting": HELD["waiting"] + 2}
    assert queue_events(journalled) == [{"what": "left", **HELD}, {"what": "entered", **more}]


def test_dropping_a_journalled_queue_records_its_depth(journalled: StoreUnderTest) -> None:
    fill(journalled)
    alive = [*journalled.pages(State.READY), *journalled.pages(State.SCHEDULED), *journalled.pages(State.LEASED)]
    alive_since = min(message.created_at for message in alive)
    journalled.clock.advance(1_000)
    fill(journalled, "untold")
    journalled.make("untold", journal="off")
    journalled.make("empty")
    for queue in ("q", "untold", "empty"):
        journalled.do(Drop(queue=queue, force=True))
    held = sum(EVERY_STATE.values())
    assert queue_events(journalled)[1:] == [
        {"what": "removed", "held": held, **HELD, "since": alive_since},
        {"what": "removed", "held": held},
        {"what": "removed", "held": 0, **NOTHING, "since": journalled.clock()},
    ]


def test_the_error_of_a_nacked_dead_letter_is_in_the_journal(journalled: StoreUnderTest) -> None:
    journalled.make("q", max_attempts=1)
    journalled.bury("a", "b", "c", queue="q")
    leased = journalled.lease("q.dlq", limit=3)
    journalled.nack(*leased[:2], error="still no such user")
    journalled.release(leased[2])
    found = {event.id: event.details for event in events_of(journalled) if event.kind == "released"}
    error = {"error": "still no such user"}
    assert found == {leased[0].id: error, leased[1].id: error, leased[2].id: {}}


def test_a_journal_that_starts_later_records_initial_depths(journalled: StoreUnderTest) -> None:
    journalled.switch_journal(False)
    fill(journalled)
    fill(journalled, "untold")
    journalled.make("untold", journal="off")
    journalled.make("empty")
    leased = journalled.lease("q", 2)
    journalled.switch_journal(True)
    held = {**HELD, "waiting": HELD["waiting"] - 2, "leased": HELD["leased"] + 2}
    assert queue_events(journalled) == [{"what": "entered", **held}, {"what": "entered", **NOTHING}]
    journalled.ack(leased[0])
    journalled.nack(leased[1])
    journalled.redrive("q")
    journalled.push("told", queue="empty")
    journalled.clock.advance(20_000)
    journalled.sweep()
    ended = [event for event in events_of(journalled) if event.kind in ("acked", "dead")]
    assert {event.pushed_at for event in ended if event.id == leased[0].id} == {leased[0].created_at}


def test_a_failure_is_journalled_with_traceback_and_a_discard_as_gone(journalled: StoreUnderTest) -> None:
    journalled.make("q", max_attempts=9)
    journalled.push("a", "b")
    one, two = journalled.lease("q", 2)
    journalled.nack(one, error="first", traceback="line 1", dead=True)
    journalled.nack(two, error="second", discard=True)
    events = [event for event in events_of(journalled) if event.kind in ("nacked", "dead")]
    assert [(event.kind, event.id) for event in events] == [
        ("nacked", one.id),
        ("dead", one.id),
        ("nacked", two.id),
        ("dead", two.id),
    ]
    assert events[0].details == {"error": "first", "traceback": "line 1"}
    assert events[2].details == {"error": "second"}
    assert ["gone" in event.marks for event in events] == [False, False, False, True]


def test_a_journal_that_stops_records_final_depths(journalled: StoreUnderTest) -> None:
    fill(journalled)
    journalled.push("untold yet")
    journalled.push("untold yet, too")
    journalled.switch_journal(False)
    journalled.push("untold")
    journalled.switch_journal(True)
    assert queue_events(journalled) == [
        {"what": "left", **HELD, "waiting": HELD["waiting"] + 2},
        {"what": "entered", **HELD, "waiting": HELD["waiting"] + 3},
    ]


def test_a_busy_store_is_journalled_only_after_the_journal_starts(
    journalled: StoreUnderTest,
) -> None:
    journalled.switch_journal(False)
    other = journalled.open_another()
    for number in range(5):
        other.apply([push_command(f"before {number}")])
    journalled.switch_journal(True)
    journalled.reopen()
    other.apply([push_command("after")])
    journalled.ack(*journalled.lease("q", 2))
    other.apply([push_command("last")])
    assert queue_events(journalled) == [{"what": "entered", **NOTHING, "waiting": 5}]
    assert [event.kind for event in events_of(journalled)].count("pushed") == 2


def test_only_one_of_many_concurrent_starts_records_initial_depths(journalled: StoreUnderTest) -> None:
    journalled.switch_journal(False)
    journalled.push("before")
    journalled._journal = True
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: journalled.open_another(), range(8)):
            store.close()
    assert queue_events(journalled) == [{"what": "entered", **NOTHING, "waiting": 1}]


def test_a_journal_starts_between_transactions_of_others(unjournalled: PostgresUnderTest) -> None:
    other = unjournalled.open_another()
    other.apply([push_command("before")])
    unjournalled._journal = True
    begins, goes_on, makes = (
        threading.Thread(target=work)
        for work in (
            unjournalled.open_another,
            lambda: other.apply([push_command("after")]),
            lambda: unjournalled.push("after", queue="made later"),
        )
    )
    with psycopg.connect(str(unjournalled.path)) as maker:
        with psycopg.connect(str(unjournalled.path)) as pusher:
            unjournalled.push_on(pusher, push_command("on its way"))
            maker.execute("SELECT pg_advisory_xact_lock(%s)", (unjournalled._context.lock_key(CREATING, 0),))
            begins.start()
            eventually(lambda: _awaited_locks(unjournalled) == [ALIVE])
        eventually(lambda: _awaited_locks(unjournalled) == [CREATING])
        goes_on.start()
        makes.start()
        eventually(lambda: _awaited_locks(unjournalled) == [ALIVE, CREATING, CREATING])
    for thread in (begins, goes_on, makes):
        thread.join()
    details = [
        (event.queue, event.details.get("waiting")) for event in events_of(unjournalled) if event.kind == "queue"
    ]
    assert details == [("q", 2), ("made later", None)]
    unjournalled.check()


def _awaited_locks(store: PostgresUnderTest) -> list[int]:
    """Return the kinds of advisory locks that sessions are waiting for."""
    wanted = (
        "SELECT objid::bigint >> 10 & 63 FROM pg_locks "
        "WHERE locktype = 'advisory' AND NOT granted AND classid = %s ORDER BY 1"
    )
    with closing(psycopg.connect(str(store.path))) as connection:
        return [kind for (kind,) in connection.execute(wanted, (store.store_id >> 16,))]


def test_a_new_journal_continues_the_log_of_a_deleted_file(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(SqliteStore(path, journal=True)) as store:
        store.apply([push_command("old")])
    path.unlink()
    with closing(SqliteStore(path)) as store:
        store.apply([push_command("new")])
    with closing(SqliteStore(path, journal=True)):
        pass
    assert [event.kind for event in log_events(journal_folder(path))] == ["queue", "pushed", "queue"]
