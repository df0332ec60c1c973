"""Options of `put`: priority, time to live, key, and the caller's own transaction."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import InvalidInput, LiteQueue, StoreBusy, WrongType
from tests.conformance.recount import check_tables
from tests.unit.test_lite import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def queue(path: Path, clock: Clock) -> Iterator[LiteQueue]:
    with LiteQueue(path, clock=clock) as queue:
        yield queue
    with closing(sqlite3.connect(path)) as db:
        check_tables(db)


def pop_all(queue: LiteQueue, qname: str = "default") -> list[bytes]:
    return [message.data for message in queue.pop_many(1_000, qname)]


def test_a_higher_priority_is_delivered_first_and_equals_are_fifo(queue: LiteQueue) -> None:
    for data, priority in ((b"a", 0), (b"b", 5), (b"c", -1), (b"d", 5), (b"e", 0)):
        queue.put(data, priority=priority)
    assert pop_all(queue) == [b"b", b"d", b"a", b"e", b"c"]


def test_a_message_past_its_ttl_is_never_delivered(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"short", ttl=1)
    queue.put(b"long", ttl=10)
    queue.put(b"late", ttl=1, delay=5)
    clock.pass_seconds(1)
    assert queue.qsize() == 1
    assert pop_all(queue) == [b"long"]
    clock.pass_seconds(5)
    assert queue.pop() is None


def test_a_repeated_key_returns_the_first_id_even_after_the_ack(queue: LiteQueue) -> None:
    first = queue.put(b"1", key="order-7")
    assert queue.put(b"2", key="order-7") == first
    assert queue.put(b"3", "other", key="order-7") != first
    with queue.process() as message:
        assert message is not None
        assert message.data == b"1"
    assert queue.put(b"4", key="order-7") == first
    assert queue.qsize() == 0


def test_put_many_keeps_order_and_delays_all(queue: LiteQueue, clock: Clock) -> None:
    ids = queue.put_many((b"%d" % n for n in range(100)), delay=3)
    assert len(set(ids)) == 100
    assert queue.pop() is None
    clock.pass_seconds(3)
    assert [message.id for message in queue.pop_many(200)] == ids


def test_put_many_is_all_or_nothing(queue: LiteQueue) -> None:
    def failing_source() -> Iterator[Any]:
        yield b"1"
        yield b"2"
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        queue.put_many(failing_source())
    with pytest.raises(WrongType):
        queue.put_many([b"1", "2"])  # type: ignore[list-item]
    assert queue.qsize() == 0


def test_put_on_the_callers_connection_is_visible_after_its_commit(queue: LiteQueue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE orders (id INTEGER)")
        conn.execute("INSERT INTO orders VALUES (1)")
        id_ = queue.put(b"x", conn=conn)
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT count(*) FROM penstock_message").fetchone() == (0,)
        conn.commit()
    message = queue.pop()
    assert message is not None
    assert (message.id, message.data) == (id_, b"x")


def test_put_on_the_callers_connection_rolls_back_with_it(queue: LiteQueue, path: Path) -> None:
    kept = queue.put(b"kept")
    with closing(sqlite3.connect(path)) as conn:
        queue.put(b"gone", conn=conn)
        queue.put(b"gone too", "new-queue", conn=conn)
        conn.rollback()
    after = queue.put(b"after")
    assert queue.qsize("new-queue") == 0
    assert [message.id for message in queue.pop_many(10)] == [kept, after]


def test_put_on_a_connection_without_a_transaction_opens_one(queue: LiteQueue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        queue.put(b"x", conn=conn)
        assert conn.in_transaction
        conn.commit()
    assert pop_all(queue) == [b"x"]


def test_put_on_an_autocommit_connection_commits_at_once(queue: LiteQueue, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        queue.put(b"1", conn=conn)
        assert not conn.in_transaction
        assert pop_all(queue) == [b"1"]
        conn.execute("BEGIN")
        queue.put(b"2", conn=conn)
        conn.execute("ROLLBACK")
    assert pop_all(queue) == []


@pytest.mark.parametrize("isolation_level", ["", None, "IMMEDIATE"])
def test_others_may_put_and_pop_between_the_callers_transactions(
    queue: LiteQueue, path: Path, isolation_level: Any
) -> None:
    with closing(sqlite3.connect(path, isolation_level=isolation_level)) as conn:
        for number in range(20):
            queue.put(b"theirs %d" % number, "a" if number % 2 else "b")
            queue.put(b"ours %d" % number, "a" if number % 3 else "b", conn=conn)
            conn.commit()
            with queue.process("a"):
                pass
    delivered = pop_all(queue, "a") + pop_all(queue, "b")
    assert len(delivered) == len(set(delivered))


def test_the_callers_row_and_text_factories_are_kept(queue: LiteQueue, path: Path) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip([column[0] for column in cursor.description], row, strict=True))

    queue.put(b"1")
    with closing(sqlite3.connect(path)) as conn:
        conn.row_factory, conn.text_factory = as_dict, bytes
        queue.put(b"2", conn=conn)
        conn.commit()
        assert (conn.row_factory, conn.text_factory) == (as_dict, bytes)
    assert pop_all(queue) == [b"1", b"2"]


def test_a_refused_put_leaves_the_callers_transaction_unchanged(queue: LiteQueue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE orders (id INTEGER)")
        conn.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(InvalidInput):
            queue.put(b"x", "no name!", conn=conn)
        conn.commit()
        assert conn.execute("SELECT * FROM orders").fetchall() == [(1,)]
    assert queue.qsize() == 0


def test_a_connection_to_another_file_is_refused(queue: LiteQueue, tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "other.db") as other:
        other.put(b"theirs")
        for place in (tmp_path / "other.db", ":memory:"):
            with closing(sqlite3.connect(place)) as conn, pytest.raises(InvalidInput, match="conn is open on"):
                queue.put(b"x", conn=conn)
        assert other.qsize() == 1
    with pytest.raises(WrongType, match="sqlite3"):
        queue.put(b"x", conn="tasks.db")  # type: ignore[arg-type]


def test_put_fails_in_a_transaction_with_an_outdated_snapshot(queue: LiteQueue, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM penstock_message").fetchone()
        queue.put(b"meanwhile")
        with pytest.raises(StoreBusy):
            queue.put(b"x", conn=conn)
        conn.execute("ROLLBACK")
        queue.put(b"again", conn=conn)
    assert pop_all(queue) == [b"meanwhile", b"again"]


def test_an_explicit_max_retries_is_applied_over_the_callers_connection(path: Path, clock: Clock) -> None:
    with LiteQueue(path, clock=clock) as queue:
        queue.put(b"x", "jobs")
    with LiteQueue(path, max_retries=0, clock=clock) as queue, closing(sqlite3.connect(path)) as conn:
        queue.put(b"y", "jobs", conn=conn)
        conn.commit()
    with LiteQueue(path, clock=clock) as queue:
        queue.pop_many(2, "jobs", timeout=1)
        clock.pass_seconds(1)
        assert len(queue.dlq("jobs")) == 2


def test_a_message_can_be_pickled_and_acked_in_another_process(queue: LiteQueue, path: Path) -> None:
    queue.put(b"x")
    message = pickle.loads(pickle.dumps(queue.pop()))
    with LiteQueue(path, clock=queue._store._clock) as other:
        other.ack(message)
        assert other.ack_many([message]) == []
        assert other.nack_many([message]) == [message]
