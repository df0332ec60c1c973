"""Draining the journal fsyncs the store beside commits; if that fails, no commit is acknowledged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.commands import Push
from penstock.core.model import PushItem, QueueOptions
from penstock.errors import StoreError, StoreUnreachable
from penstock.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with_journal = SqliteStore(tmp_path / "q.db", journal=True)
    yield with_journal
    with_journal.close()


def push() -> Push:
    return Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions())


def fail_to_sync(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fsync)
        with pytest.raises(StoreError):
            store.sync()


def ready_count(store: SqliteStore) -> int:
    return store.stats("q").info.ready


def test_a_commit_beside_a_failed_fsync_is_not_acknowledged(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply([push()])
    prepared = store.prepare([push()])
    assert prepared is not None
    fail_to_sync(store, monkeypatch)
    with pytest.raises(StoreUnreachable) as refused:
        prepared.commit()
    prepared.release()
    assert refused.value.maybe_done
    store.apply([push()])
    assert ready_count(store) == 3, "an unacknowledged commit may still be stored"


def test_after_a_failed_fsync_the_wal_is_rewritten_and_commits_are_acknowledged(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply([push()])
    fail_to_sync(store, monkeypatch)
    note = Path(f"{store.path}-doubt")
    assert note.exists()
    store.apply([push()])
    assert not note.exists()
    assert ready_count(store) == 2


@pytest.mark.parametrize("commands", [1, 3])
def test_a_commit_before_a_failed_fsync_is_not_repeated(
    commands: int, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.apply([push()])
    write = store._writer.execute

    class Writer:
        """A connection on which an fsync fails just after a commit."""

        def __getattr__(self, name: str) -> object:
            return getattr(writer, name)

        def execute(self, sql: str, *values: object) -> object:
            done = write(sql, *values)
            if sql == "COMMIT":
                fail_to_sync(store, monkeypatch)
            return done

    writer = store._writer
    with monkeypatch.context() as patched:
        patched.setattr(store, "_writer", Writer())
        patched.setattr(store._transaction, "is_writer", False)
        with pytest.raises(StoreUnreachable):
            store.apply([push() for _ in range(commands)])
    assert ready_count(store) == 1 + commands
