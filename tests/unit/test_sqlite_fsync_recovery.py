"""Commits without fsync never checkpoint the WAL, and cannot let it grow forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.commands import Lease, Push
from penstock.core.model import PushItem, QueueOptions
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.connection import JOURNAL_WAL_PAGES, WAL_PAGES
from penstock.store.sqlite.store import UNSYNCED_MAX

FULL, NORMAL = 2, 1


def fsync_and_checkpoint(store: SqliteStore) -> tuple[int, int]:
    """Return the fsync mode of the last commit, and its checkpoint threshold in pages."""
    (synchronous,) = store._writer.execute("PRAGMA synchronous").fetchone()
    (pages,) = store._writer.execute("PRAGMA wal_autocheckpoint").fetchone()
    return synchronous, pages


@pytest.mark.parametrize(("journal", "pages"), [(False, WAL_PAGES["full"]), (True, JOURNAL_WAL_PAGES)])
def test_only_an_fsynced_commit_checkpoints_the_wal(journal: bool, pages: int, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.db", journal=journal)
    store.apply([Push(queue="q", messages=[PushItem(payload=b"a")], create=QueueOptions())])
    assert fsync_and_checkpoint(store) == (FULL, pages)
    seen = []
    for _ in range(UNSYNCED_MAX + 2):
        store.apply([Lease(queue="q")])
        seen.append(fsync_and_checkpoint(store))
    assert seen == [(NORMAL, 0)] * UNSYNCED_MAX + [(FULL, pages), (NORMAL, 0)]
    store.close()


def test_at_relaxed_durability_every_commit_can_checkpoint_the_wal(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.db", durability="relaxed")
    store.apply([Push(queue="q", messages=[PushItem(payload=b"a")], create=QueueOptions())])
    store.apply([Lease(queue="q")])
    assert fsync_and_checkpoint(store) == (NORMAL, WAL_PAGES["relaxed"])
    store.close()
