"""A lease of many messages stays a few rows, whatever happens to one of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.commands import Ack, Extend, Lease, Nack, Push, Release, Settled, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.lease_ranges import MOVE_OUT_STEP

COUNT = 1_000


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found


@pytest.mark.parametrize("verb", [Ack, Nack, Extend, Release])
def test_settling_one_message_splits_off_only_its_neighbours(tmp_path: Path, verb: Any) -> None:
    path = tmp_path / "queue.db"
    with closing(SqliteStore(path)) as store:
        messages = [PushItem(payload=b"x")] * COUNT
        store.apply([Push(queue="q", messages=messages, create=QueueOptions())])
        leased = store.apply([Lease(queue="q", limit=COUNT)])[0].messages
        one = leased[COUNT // 2]
        (done,) = store.apply([verb(queue="q", items=[SettleItem(one.id, one.token)])])
        assert done.results == [Settled.OK]
        assert rows(path, "penstock_single_lease") <= MOVE_OUT_STEP
        assert rows(path, "penstock_lease_range") == 2
        others = [SettleItem(each.id, each.token) for each in leased if each is not one]
        (acked,) = store.apply([Ack(queue="q", items=others)])
        assert acked.results == [Settled.OK] * (COUNT - 1)
        assert rows(path, "penstock_lease_range") == 0


def test_an_ack_of_the_first_messages_leaves_one_range(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with closing(SqliteStore(path)) as store:
        store.apply([Push(queue="q", messages=[PushItem(payload=b"x")] * COUNT, create=QueueOptions())])
        leased = store.apply([Lease(queue="q", limit=COUNT)])[0].messages
        for start in range(0, COUNT, 100):
            assert rows(path, "penstock_lease_range") == 1
            items = [SettleItem(each.id, each.token) for each in leased[start : start + 100]]
            (acked,) = store.apply([Ack(queue="q", items=items)])
            assert acked.results == [Settled.OK] * 100
        assert rows(path, "penstock_lease_range") == rows(path, "penstock_message") == 0
