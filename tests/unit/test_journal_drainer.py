"""The drainer copies the store's journal to the log completely, once and in order, despite crashes."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import LiteQueue
from penstock.core.commands import Ack, CatchUpJournal, Command, Lease, Push, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.errors import CorruptRecord, InvariantBroken, StoreBusy, StoreClosed
from penstock.journal.drainer import Drain, drain_once, journal_folder
from penstock.log.reader import LogReader
from penstock.log.segment_header import HEAD_BYTES
from penstock.log.writer import Log
from penstock.store.sqlite import SqliteStore
from tests.conformance.replay import Replay, check_counters, log_events


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "penstock.db", durability="relaxed", journal=True)) as store:
        yield store


def work(store: SqliteStore, rounds: int = 3, size: int = 10) -> None:
    for _ in range(rounds):
        do(store, Push(queue="q", messages=[PushItem(payload=b"x" * size)] * 5, create=QueueOptions()))
        leased = do(store, Lease(queue="q", limit=4)).messages
        do(store, Ack(queue="q", items=[SettleItem(message.id, message.token) for message in leased]))


def do(store: SqliteStore, command: Command[object]) -> object:
    (outcome,) = store.apply([command])
    return outcome


def check(store: SqliteStore) -> Replay:
    """Check that replaying the log gives the store's counters."""
    replay = Replay()
    replay.play(log_events(journal_folder(store.path)))
    with closing(sqlite3.connect(store.path)) as db:
        check_counters(db, replay)
    return replay


def open_drain(store: SqliteStore) -> Drain:
    drain = Drain.open(store, journal_folder(store.path))
    assert drain is not None
    return drain


def test_events_move_to_the_log_in_order_and_are_deleted_from_the_store(store: SqliteStore) -> None:
    work(store)
    drain_once(store, store.path)
    work(store)
    drain_once(store, store.path)
    assert check(store).next_offset == store.journal_bounds()[1]
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("SELECT count(*) FROM penstock_journal").fetchone() == (1,)


def test_the_log_is_never_ahead_of_the_stores_disk(tmp_path: Path) -> None:
    """Leases are not fsynced: if the log were ahead, a power cut could leave it with a lease that the store lost."""

    class SyncRecordingStore(SqliteStore):
        log: Log | None = None
        synced_at: int | None = None

        def sync(self) -> None:
            super().sync()
            if self.log is not None:
                self.synced_at = self.log.next_offset

    with (
        closing(SyncRecordingStore(tmp_path / "penstock.db", journal=True)) as store,
        closing(open_drain(store)) as drain,
    ):
        do(store, Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions()))
        do(store, Lease(queue="q", limit=1))
        do(store, CatchUpJournal())
        store.log, before = drain.log, drain.next_offset
        assert drain.step() is not None
        assert drain.next_offset > before
        assert store.synced_at == before


def test_a_crash_before_the_deletion_repeats_nothing(store: SqliteStore) -> None:
    work(store)
    with closing(open_drain(store)) as drain:
        assert drain.step() is not None
    work(store)
    with closing(open_drain(store)) as drain:
        assert drain.step() is not None
        assert drain.step() is None
    check(store)


def test_a_log_cut_within_a_commit_is_completed(store: SqliteStore) -> None:
    messages = [PushItem(payload=b"x" * 600_000)] * 3
    do(store, Push(queue="q", messages=messages, create=QueueOptions()))
    (row,) = store.journal_from(0, 1)
    assert row.records == 4, "one for the queue, and one for each large message"
    folder = journal_folder(store.path)
    with closing(open_drain(store)) as drain:
        drain.step()
    (segment,) = folder.glob("*.log")
    whole = segment.read_bytes()[HEAD_BYTES:]
    shutil.rmtree(folder)
    with closing(open_drain(store)) as drain:
        drain.log.append_encoded(whole[: len(whole) - 1_000_000][: _two_records(whole)])
    with closing(open_drain(store)) as drain:
        assert drain.log.next_offset == 2
        drain.step()
    assert check(store).next_offset == 4
    assert segment.read_bytes()[HEAD_BYTES:] == whole


def _two_records(data: bytes) -> int:
    first = 24 + int.from_bytes(data[:4], "little")
    return first + 24 + int.from_bytes(data[first : first + 4], "little")


def test_only_one_process_drains_at_a_time(store: SqliteStore) -> None:
    work(store)
    with closing(open_drain(store)) as drain:
        assert Drain.open(store, journal_folder(store.path)) is None
        drain_once(store, store.path)
        assert drain.log.next_offset == 0
    drain_once(store, store.path)
    check(store)


def test_after_restoring_an_older_store_new_events_follow_the_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "penstock.db", tmp_path / "copy.db"
    with closing(SqliteStore(path, durability="relaxed", journal=True)) as store:
        work(store)
        store.backup(copy)
        work(store)
        drain_once(store, store.path)
        end = store.journal_bounds()[1]
    for left in tmp_path.glob("penstock.db-*"):
        left.unlink()
    copy.replace(path)
    with closing(SqliteStore(path, durability="relaxed")) as store:
        work(store, rounds=1)
        drain_once(store, store.path)
        events = list(log_events(journal_folder(path)))
    assert next(event.offset for event in events if event.offset >= end) == end
    assert {event.kind for event in events if event.offset >= end} == {"pushed", "leased", "acked"}


def test_a_drain_that_fails_to_start_unlocks_the_log(store: SqliteStore) -> None:
    """The log is ahead of the store, and the drain fails before it can tell the store so."""
    work(store, rounds=1)
    drain_once(store, store.path)

    class Busy:
        def journal_bounds(self) -> tuple[int, int]:
            return 0, 0

        def apply(self, commands: object) -> list[object]:
            raise StoreBusy("another process is writing")

    with pytest.raises(StoreBusy):
        Drain.open(Busy(), journal_folder(store.path))  # type: ignore[arg-type]
    open_drain(store).close()


def test_commands_succeed_while_the_journal_cannot_be_drained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "penstock.db"
    journal_folder(path).write_text("a file where the folder is to be")
    store = SqliteStore(path, durability="relaxed", journal=True)
    work(store, rounds=2, size=300_000)
    assert "cannot drain the journal" in caplog.text
    store.close()
    with pytest.raises(StoreClosed):
        store.find_queue("q")
    journal_folder(path).unlink()
    with closing(SqliteStore(path, durability="relaxed")) as store:
        drain_once(store, store.path)
        check(store)


def test_events_of_the_callers_connection_are_drained_on_close(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    queue = LiteQueue(path, journal=True)
    with closing(sqlite3.connect(path)) as connection:
        queue.put(b"x", conn=connection)
        connection.commit()
    queue.close()
    assert "pushed" in {event.kind for event in log_events(journal_folder(path))}


def test_a_deleted_log_restarts_at_the_stores_position(store: SqliteStore) -> None:
    work(store)
    drain_once(store, store.path)
    end = store.journal_bounds()[1]
    shutil.rmtree(journal_folder(store.path))
    work(store)
    drain_once(store, store.path)
    with LogReader(journal_folder(store.path)) as reader:
        assert reader.first_offset <= end
        assert reader.next_offset == store.journal_bounds()[1]


def test_lost_events_leave_a_gap_that_is_reported(store: SqliteStore) -> None:
    work(store, rounds=1)
    drain_once(store, store.path)
    lost = store.journal_bounds()[1]
    work(store, rounds=1)
    kept = store.journal_bounds()[1]
    work(store, rounds=1)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("DELETE FROM penstock_journal WHERE first_offset < ?", (kept,))
        db.commit()
    drain_once(store, store.path)
    with LogReader(journal_folder(store.path)) as reader:
        with pytest.raises(CorruptRecord):
            reader.read(lost)
        assert reader.read(kept).records


def test_a_commit_too_large_for_one_append_is_split(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "penstock.db", durability="relaxed", journal=True)) as store:
        do(store, Push(queue="q", messages=[PushItem(payload=bytes(7_000_000))] * 6, create=QueueOptions()))
        drain_once(store, store.path)
        check(store)


def test_a_body_too_large_for_a_record_is_left_out_and_its_size_recorded(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "penstock.db", durability="relaxed", journal=True)) as store:
        do(store, Push(queue="q", messages=[PushItem(payload=bytes(9 << 20))], create=QueueOptions()))
        drain_once(store, store.path)
        *_, event = log_events(journal_folder(store.path))
    assert event.body == b""
    assert event.details == {"body_bytes": 9 << 20}


def test_events_that_are_not_consecutive_do_not_reach_the_log(store: SqliteStore) -> None:
    work(store)
    with closing(sqlite3.connect(store.path)) as db, db:
        (first, *_, last) = [row[0] for row in db.execute("SELECT rowid FROM penstock_journal ORDER BY rowid")]
        db.execute("DELETE FROM penstock_journal WHERE rowid > ? AND rowid < ?", (first, last))
    with closing(open_drain(store)) as drain:
        with pytest.raises(InvariantBroken, match="not consecutive"):
            drain.step()
        assert drain.log.next_offset == 0
