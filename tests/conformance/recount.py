"""Compares a store's counters with a count of its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.core.ids import ID_BITS, ID_MAX
from penstock.store.common import GAUGES
from penstock.store.sqlite.queues import UNCOUNTED_MAX

COUNTED = {
    "scheduled": "SELECT count(*) FROM penstock_scheduled WHERE queue_id = ?",
    "leased": "SELECT count(*) FROM penstock_leased WHERE queue_id = ?",
    "dead": "SELECT count(*) FROM penstock_dead WHERE NOT leased AND queue_id = ?",
    "archived": "SELECT count(*) FROM penstock_archive WHERE queue_id = ?",
}

STATE_ROWS = """
SELECT place, queue_id, id FROM penstock_ready UNION ALL
SELECT place, queue_id, id FROM penstock_scheduled UNION ALL
SELECT place, queue_id, id FROM penstock_leased UNION ALL
SELECT place, queue_id, id FROM penstock_dead WHERE NOT leased UNION ALL
SELECT place, queue_id, id FROM penstock_archive"""


EMPTY_RANGES = f"""
SELECT * FROM penstock_lease_range r
 WHERE NOT EXISTS (SELECT 1 FROM penstock_message m WHERE m.place BETWEEN r.queue_id << {ID_BITS + 1} | r.first_id
                                                                      AND r.queue_id << {ID_BITS + 1} | r.last_id)"""


class Database(Protocol):
    def execute(self, sql: str, params: Sequence[Any] = ..., /) -> Any: ...


def check_tables(db: Database, *, busy_exactly: bool = True) -> None:
    """Check that counters equal a recount and that every message is in exactly one state."""
    queues = db.execute("SELECT id, name FROM penstock_queue").fetchall()
    busy = set()
    for queue_id, name in queues:
        kept = kept_counters(db, queue_id)
        counted = _recount(db, queue_id, kept["cursor"])
        assert {gauge: kept[gauge] for gauge in GAUGES} == counted, name
        if "/" in name and counted["ready"] + counted["scheduled"] + counted["leased"]:
            busy.add(name)
    listed = {name for (name,) in db.execute("SELECT name FROM penstock_busy")}
    # On PostgreSQL an empty queue may stay listed until the next sweep, but a busy queue is always listed.
    assert listed == busy if busy_exactly else listed >= busy
    _check_places(db, dict(queues))


def counter_row(db: Database, queue_id: int) -> dict[str, Any]:
    cursor = db.execute("SELECT * FROM penstock_counter WHERE queue_id = ?", (queue_id,))
    return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


def kept_counters(db: Database, queue_id: int) -> dict[str, Any]:
    kept = counter_row(db, queue_id)
    if _defers_counters(db):
        _add_deferred_counts(db, queue_id, kept)
    return kept


def _defers_counters(db: Database) -> bool:
    """Return True if counters may lag behind. PostgreSQL adds counter rows in every commit; only SQLite defers them."""
    return isinstance(db, sqlite3.Connection)


def _add_deferred_counts(db: Database, queue_id: int, kept: dict[str, Any]) -> None:
    """Add what the counters do not include yet: a few pushes and leases of plain messages in the one deferred queue."""
    lane = queue_id * 2 << ID_BITS
    new = (lane | kept["last_id"], lane | ID_MAX)
    (pushed,) = db.execute("SELECT count(*) FROM penstock_message WHERE place > ? AND place <= ?", new).fetchone()
    leased, cursor = _uncounted_leases(db, queue_id, kept["cursor"])
    (ahead,) = db.execute("SELECT value FROM penstock_setting WHERE name = 'uncounted'").fetchone()
    assert pushed == leased == 0 or ahead == queue_id
    assert max(pushed, leased) <= UNCOUNTED_MAX
    kept["ready"] += pushed - leased
    kept["leased"] += leased
    kept["n_pushed"] += pushed
    kept["n_leased"] += leased
    kept["cursor"] = cursor


def _uncounted_leases(db: Database, queue_id: int, cursor: int) -> tuple[int, int]:
    """Return the number of uncounted leases, and the cursor after them."""
    beyond = (cursor, queue_id, cursor, queue_id * 2 << ID_BITS | ID_MAX)
    sql = "SELECT count(*), ifnull(max(place), ?) FROM penstock_leased WHERE queue_id = ? AND place > ? AND place <= ?"
    count, last = db.execute(sql, beyond).fetchone()
    return int(count), int(last)


def last_id(db: Database) -> int:
    """Return the highest id ever assigned."""
    (counted,) = db.execute("SELECT max(last_id) FROM penstock_counter").fetchone()
    (present,) = db.execute(f"SELECT ifnull(max(place & {ID_MAX}), 0) FROM penstock_message").fetchone()
    return max(int(counted), int(present))


def _recount(db: Database, queue_id: int, cursor: int) -> dict[str, int]:
    plain_end = (queue_id * 2 + 1) << ID_BITS
    (plain,) = db.execute(
        "SELECT count(*) FROM penstock_message WHERE place > ? AND place < ?", (cursor, plain_end)
    ).fetchone()
    (filed,) = db.execute("SELECT count(*) FROM penstock_ready WHERE queue_id = ?", (queue_id,)).fetchone()
    counted = {gauge: db.execute(sql, (queue_id,)).fetchone()[0] for gauge, sql in COUNTED.items()}
    return {"ready": plain + filed, **counted}


def _check_places(db: Database, queues: dict[int, str]) -> None:
    stored = db.execute("SELECT queue_id, cursor FROM penstock_counter").fetchall()
    cursors = dict(stored)
    if _defers_counters(db):
        cursors = {queue_id: _uncounted_leases(db, queue_id, cursor)[1] for queue_id, cursor in stored}
    states: dict[int, int] = {}
    for place, queue_id, message_id in db.execute(STATE_ROWS):
        assert place & ID_MAX == message_id
        assert place >> ID_BITS + 1 == queue_id
        states[place] = states.get(place, 0) + 1
    for (place,) in db.execute("SELECT place FROM penstock_message"):
        queue_id = place >> ID_BITS + 1
        assert queue_id in queues
        plain_ready = not place >> ID_BITS & 1 and place > cursors[queue_id]
        assert states.pop(place, 0) + plain_ready == 1, f"message {place & ID_MAX} of {queues[queue_id]}"
    assert not states, "a state without its message"
    assert not db.execute(EMPTY_RANGES).fetchall(), "a lease without messages"
    on_lease = {i for (i,) in db.execute("SELECT id FROM penstock_dead WHERE leased")}
    assert on_lease == {i for (i,) in db.execute("SELECT id FROM penstock_single_lease WHERE from_dead")}
    extended = "SELECT id, leased_until FROM penstock_single_lease WHERE extended ORDER BY id"
    kept = "SELECT id, leased_until FROM penstock_extension ORDER BY id"
    assert db.execute(kept).fetchall() == db.execute(extended).fetchall()
    orphans = db.execute(
        f"SELECT id FROM penstock_failure WHERE id NOT IN (SELECT place & {ID_MAX} FROM penstock_message)"
    ).fetchall()
    assert not orphans, "errors of a deleted message"


def kept_keys(db: Database) -> dict[tuple[str | None, str], int]:
    rows = db.execute("SELECT q.name, k.key, k.id FROM penstock_key k LEFT JOIN penstock_queue q ON q.id = k.space")
    return {(space, key): message_id for space, key, message_id in rows}
