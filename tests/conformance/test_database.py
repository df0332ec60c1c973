"""The database of a store: it is durable, shared, backed up and compacted, and survives a fork."""

from __future__ import annotations

import os
import sqlite3
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.commands import Ack, Configure, Drop, Lease, Pause, Push, SettleItem
from penstock.core.model import PushItem, QueueOptions, State
from penstock.errors import CannotOpen, NotADatabase, StoreClosed, UnknownQueue
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.configure import QUEUES_MAX
from tests.conformance.support import Clock, StoreUnderTest, eventually, push_command, texts


def test_everything_survives_reopening(shared: StoreUnderTest, clock: Clock) -> None:
    shared.make(max_attempts=1, archive_ms=None, lease_ms=77)
    shared.bury("dead")
    shared.push("archived")
    shared.take()
    shared.push("leased", "ready")
    leased = shared.lease_one()
    shared.send(PushItem(payload=b"keyed", key="k", delay_ms=50))
    shared.do(Pause(queue="q"))
    before, store_id = (shared.info(), list(shared.export("q"))), shared.store_id
    shared.reopen()
    assert (shared.info(), list(shared.export("q"))) == before
    assert shared.store_id == store_id
    assert shared.ack(leased) == ["ok"]
    assert shared.send(PushItem(payload=b"again", key="k"))[0].duplicate
    shared.do(Pause(queue="q", paused=False))
    clock.advance(50)
    assert shared.drain() == ["ready", "keyed"]


def test_a_store_dropped_without_closing_loses_nothing(shared: StoreUnderTest) -> None:
    shared.push("a", "b")
    leased = shared.lease_one()
    shared.store = shared.open_another()
    assert shared.ack(leased) == ["ok"]
    assert shared.drain() == ["b"]


def test_a_closed_store_raises_store_closed(store: StoreUnderTest) -> None:
    store.make()
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.apply([Lease(queue="q")]),
        lambda: store.peek("q"),
        lambda: list(store.export("q")),
        store.compact,
        store.version,
    ]
    for use in uses:
        with pytest.raises(StoreClosed):
            use()


def test_two_stores_on_one_database_see_each_others_work(shared: StoreUnderTest, clock: Clock) -> None:
    one, two = shared.store, shared.open_another()
    one.apply([push_command("1")])
    two.apply([push_command("2")])
    one.apply([push_command("3")])
    (first,) = two.apply([Lease(queue="q")])
    (second,) = one.apply([Lease(queue="q")])
    assert texts(first.messages + second.messages) == ["1", "2"]
    item = SettleItem(first.messages[0].id, first.messages[0].token)
    assert one.apply([Ack(queue="q", items=[item])])[0].results == ["ok"]
    assert one.find_queue("q") == two.find_queue("q")
    assert shared.counts() == {"ready": 1, "leased": 1}


def test_options_pauses_and_drops_of_another_store_take_effect_at_once(shared: StoreUnderTest) -> None:
    one, two = shared.store, shared.open_another()
    one.apply([push_command("a"), push_command("b")])
    two.apply([Configure(queue="q", changes={"max_in_flight": 1})])
    assert len(one.apply([Lease(queue="q", limit=5)])[0].messages) == 1
    two.apply([Pause(queue="q"), Configure(queue="q", changes={"max_in_flight": None})])
    assert one.apply([Lease(queue="q")])[0].messages == []
    two.apply([Drop(queue="q", force=True)])
    assert isinstance(one.apply([Lease(queue="q")])[0], UnknownQueue)
    two.apply([push_command("new")])
    assert texts(one.apply([Lease(queue="q")])[0].messages) == ["new"]


def test_due_messages_of_another_store_are_leased(shared: StoreUnderTest, clock: Clock) -> None:
    one, two = shared.store, shared.open_another()
    shared.make()
    assert one.apply([Lease(queue="q")])[0].wake_at is None
    two.apply([Push(queue="q", messages=[PushItem(payload=b"late", delay_ms=10)])])
    assert one.apply([Lease(queue="q")])[0].wake_at == clock.now + 10
    clock.advance(10)
    assert len(one.apply([Lease(queue="q")])[0].messages) == 1


def test_the_version_changes_when_another_store_writes(shared: StoreUnderTest) -> None:
    two = shared.open_another()
    before = shared.version()
    assert shared.version() == before
    two.apply([push_command("a")])
    eventually(lambda: shared.version() != before)


def test_threads_of_many_stores_lease_each_message_once(shared: StoreUnderTest) -> None:
    stores = [shared.store, shared.store, shared.open_another(), shared.open_another()]
    shared.make(lease_ms=10**8)
    got: list[list[int]] = [[] for _ in stores]

    def work(number: int) -> None:
        for step in range(60):
            stores[number].apply([push_command(f"{number}-{step}")])
            (leased,) = stores[number].apply([Lease(queue="q", limit=2)])
            got[number] += [message.id for message in leased.messages]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handed_out = [message_id for part in got for message_id in part]
    assert len(handed_out) == len(set(handed_out))
    assert shared.counts() == {
        state: count for state, count in {"ready": 240 - len(handed_out), "leased": len(handed_out)}.items() if count
    }


def test_an_export_is_a_consistent_snapshot(shared: StoreUnderTest) -> None:
    shared.push(*map(str, range(1_500)))
    export = shared.export("q")
    first = next(export)
    shared.take(limit=1_000)
    shared.push("later")
    assert texts([first, *export]) == [str(number) for number in range(1_500)]


def test_a_backup_is_a_complete_copy(in_sqlite: StoreUnderTest, tmp_path: Path) -> None:
    in_sqlite.push(*"abc")
    in_sqlite.lease()
    steps: list[tuple[int, int]] = []
    target = tmp_path / "copies" / "copy.db"
    target.parent.mkdir()
    in_sqlite.backup(target, lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] > 0
    assert [file.name for file in target.parent.iterdir()] == ["copy.db"]
    in_sqlite.drain()
    copy = SqliteStore(target, clock=in_sqlite.clock)
    assert (copy.store_id, texts(copy.peek("q", limit=9)[0])) == (in_sqlite.store_id, ["b", "c"])
    assert [len(copy.peek("q", state=State.LEASED, limit=9)[0])] == [1]
    copy.close()


def test_a_backup_never_overwrites_and_names_an_unwritable_path(in_sqlite: StoreUnderTest, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    for target in (there, tmp_path / "none" / "copy.db"):
        with pytest.raises(CannotOpen):
            in_sqlite.backup(target)
    assert there.read_text() == "mine"


def test_a_backup_succeeds_while_others_write(on_file: StoreUnderTest, tmp_path: Path) -> None:
    on_file.send(*(PushItem(payload=b"x" * 10_000) for _ in range(2_000)))
    writer = on_file.open_another()
    written = 0

    def write(_done: int, _total: int) -> None:
        nonlocal written
        writer.apply([push_command("meanwhile"), Lease(queue="q")])
        written += 1

    on_file.backup(tmp_path / "copy.db", write)
    assert written > 1
    copy = SqliteStore(tmp_path / "copy.db", clock=on_file.clock)
    info = copy.find_queue("q")
    assert info is not None
    assert (info.ready, info.leased) == (2_000, 0)
    assert sum(1 for _ in copy.export("q")) == 2_000
    copy.close()


def test_compacting_frees_space_and_changes_no_data(on_file: StoreUnderTest) -> None:
    on_file.do(Configure(queue="q", changes={"journal": "off"}, create=QueueOptions()))
    on_file.send(*(PushItem(payload=b"x" * 10_000) for _ in range(300)))
    on_file.push("kept")
    on_file.take(limit=300)
    on_file.compact()
    before = Path(on_file.path).stat().st_size
    assert before < 1_000_000
    assert on_file.drain() == ["kept"]


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to look like a header of one" * 20)
    before = file.read_bytes()
    with pytest.raises(NotADatabase):
        SqliteStore(file)
    assert file.read_bytes() == before
    with pytest.raises(CannotOpen):
        SqliteStore(tmp_path / "none" / "penstock.db")


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child process, and fail if it fails."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_may_use_its_parents_store(shared: StoreUnderTest) -> None:
    shared.push("parent's")

    def work() -> None:
        assert shared.drain() == ["parent's"]
        shared.push("child's")

    in_child(work)
    shared.push("after")
    assert shared.drain() == ["child's", "after"]


def test_a_child_that_dies_in_a_transaction_leaves_nothing_of_it(on_file: StoreUnderTest) -> None:
    on_file.push("a")

    def work() -> None:
        other = sqlite3.connect(on_file.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        on_file.apply_on(other, [push_command("lost"), Lease(queue="q")])

    in_child(work)
    assert on_file.counts() == {"ready": 1}
    assert on_file.drain() == ["a"]


def test_a_forked_child_has_its_own_copy_of_a_store_in_memory(tmp_path: Path) -> None:
    memory = StoreUnderTest(":memory:", persists=False)
    memory.push("parent's")

    def work() -> None:
        assert memory.drain() == ["parent's"]

    in_child(work)
    assert memory.drain() == ["parent's"]
    memory.close_all()


def test_many_processes_can_open_and_close_a_file_at_once(tmp_path: Path) -> None:
    """Creating, recovering and removing the WAL takes locks that other processes must wait for."""
    path = tmp_path / "penstock.db"

    def work() -> None:
        for _ in range(15):
            store = SqliteStore(path, durability="relaxed")
            store.apply([push_command("x"), Lease(queue="q")])
            store.peek("q")
            assert next(store.export("q")) is not None
            store.close()

    children = [threading.Thread(target=in_child, args=(work,)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    store = SqliteStore(path)
    info = store.find_queue("q")
    assert info is not None
    assert info.totals.pushed == info.leased == 60
    store.close()


def test_free_queue_numbers_are_reused_when_all_are_taken(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "q.db")) as store:
        with closing(sqlite3.connect(tmp_path / "q.db")) as db:
            db.execute("INSERT INTO penstock_setting VALUES ('last_queue_id', ?)", (QUEUES_MAX - 1,))
            db.commit()
        for name in ("last", "first", "second"):
            store.apply([Configure(queue=name, changes={}, create=QueueOptions())])
        store.apply([Drop(queue="first")])
        store.apply([Configure(queue="again", changes={}, create=QueueOptions())])
        with closing(sqlite3.connect(tmp_path / "q.db")) as db:
            found = dict(db.execute("SELECT name, id FROM penstock_queue"))
    assert found == {"last": QUEUES_MAX, "again": 1, "second": 2}
