"""A store is migrated from SQLite to PostgreSQL and back without a change."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.commands import Drop, Leased, Settled
from penstock.core.model import Content, Delivery, PushItem, State
from penstock.errors import (
    CannotOpen,
    Damaged,
    InvalidInput,
    MoveDiffers,
    SourceChanged,
    StoreBusy,
    TargetNotEmpty,
)
from penstock.log.interface import Streams
from penstock.log.model import SEGMENT_BYTES_MIN, NewRecord, StreamOptions
from penstock.log.postgres.streams import PostgresStreams
from penstock.log.segment import file_name
from penstock.log.streams import FileStreams, streams_beside
from penstock.migration.migrate import migrate
from penstock.migration.postgres_streams import PostgresStreamSide
from penstock.migration.streams import FileStreamEndpoint
from tests.conformance.migration_support import Database, File, fill, snapshot
from tests.conformance.recipes import Leases, Recipe, anything
from tests.conformance.support import MINUTE_MS, Clock, StoreUnderTest, ids
from tests.postgres import drop_schema

Stores = tuple[File, Database, File]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    clock = Clock()
    opened = File(tmp_path / "from.db", clock), Database(clock), File(tmp_path / "back.db", clock)
    yield opened
    for store in opened:
        store.close()
    drop_schema(opened[1].schema)


def fill_and_close(store: File) -> File:
    fill(store.open())
    store.close()
    return store


def test_a_store_moved_there_and_back_is_unchanged(stores: Stores) -> None:
    file, database, back = stores
    fill(file.open())
    before = snapshot(file)
    file.close()
    there = migrate(file.url, database.url, clock=file.clock)
    # Queues are listed in the order of their names.
    assert [queue.name for queue in there.queues] == list(before)[2:]
    assert snapshot(database.open()) == before
    database.check()
    database.close()
    again = migrate(database.url, str(back.path), clock=file.clock)
    assert snapshot(back.open()) == before
    back.check()
    assert (again.queues, again.messages, again.checksum) == (there.queues, there.messages, there.checksum)
    assert not there.resumed
    assert there.left_behind == {}


def test_every_state_is_moved(stores: Stores) -> None:
    file, database, _ = stores
    moved = migrate(fill_and_close(file).url, database.url)
    for state in State:
        assert sum(getattr(queue, state) for queue in moved.queues) > 0
    (queue,) = [queue for queue in moved.queues if queue.name == "buried"]
    assert (queue.dead, queue.leased) == (1, 1)


def test_leases_ids_and_keys_survive_a_move(stores: Stores) -> None:
    file, database, back = stores
    leases = fill(file.open())
    newest = ids(file.pages(State.READY))[-1]
    file.close()
    migrate(file.url, database.url)
    use(database.open(), newest, leases["held"])
    database.close()
    migrate(database.url, back.url)
    back.open()
    assert back.ack(leases["held"]) != [Settled.OK]
    assert back.ack(leases["extended"]) == back.ack(leases["dead"]) == [Settled.OK]
    back.check()


def use(store: StoreUnderTest, newest: int, held: Delivery) -> None:
    (receipt,) = store.send(PushItem(payload=b"once", key="k"), queue="keyed")
    assert receipt.duplicate
    (new,) = store.push("new", queue="q")
    assert new > newest
    assert store.ack(held) == [Settled.OK]
    assert store.drain("q")[:2] == ["high", "again"]
    store.check()


def test_keys_of_a_dropped_queue_are_free_after_a_move(stores: Stores) -> None:
    file, database, back = stores
    keyed = PushItem(payload=b"x", key="k")
    store = file.open()
    for source, target in ((file, database), (database, back)):
        assert not store.send(keyed, queue="a/b/c", global_keys=True)[0].duplicate
        store.do(Drop(queue="a/b/c", force=True))
        source.close()
        migrate(source.url, target.url if target is database else str(target.path), clock=file.clock)
        store = target.open()
        store.make("a/b/c")
    assert not store.send(keyed, queue="a/b/c", global_keys=True)[0].duplicate
    assert store.send(keyed, queue="a/b/c", global_keys=True)[0].duplicate


def test_rates_continue_after_a_move(stores: Stores) -> None:
    file, database, back = stores
    migrate(fill_and_close(file).url, database.url, clock=file.clock)
    database.open().push("more", queue="q")
    database.sweep()
    file.open().push("more", queue="q")
    file.sweep()
    assert database.store.stats("q").rates == file.store.stats("q").rates
    database.close()
    file.close()
    file.clock.advance(2 * MINUTE_MS)
    migrate(database.url, back.url, clock=file.clock)
    assert back.open().store.stats("q") == file.open().store.stats("q")


@settings(max_examples=8)
@given(st.lists(st.tuples(anything, st.sampled_from([0, 0, 1, 4, 11, 70_000])), min_size=20, max_size=60))
def test_any_store_survives_a_move_there_and_back(steps: list[tuple[Recipe, int]]) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        file, database, back = File(Path(folder, "from.db"), clock), Database(clock), File(Path(folder, "b.db"), clock)
        file.open()
        leases: Leases = []
        for recipe, ms in steps:
            (outcome,) = file.store.apply([recipe.make(leases, for_store=True)])
            if isinstance(outcome, Leased):
                leases += [(message, message) for message in outcome.messages]
            clock.advance(ms)
        before = snapshot(file)
        file.close()
        migrate(file.url, database.url, clock=clock)
        assert snapshot(database.open()) == before
        database.close()
        migrate(database.url, back.url, clock=clock)
        assert snapshot(back.open()) == before
        back.check()
        back.close()
        drop_schema(database.schema)


class Interrupted(BaseException):
    pass


def interrupt_after(steps: int) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Interrupted

    return report


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_move_interrupted_after_any_step_resumes(stores: Stores, back: bool) -> None:
    file, database, other = stores
    source, target = fill_and_close(file).url, database.url
    if back:
        migrate(source, target, clock=file.clock)
        source, target = target, other.url
    for steps in range(0, 1_000, 7):
        try:
            moved = migrate(source, target, step_rows=2, progress=interrupt_after(steps), clock=file.clock)
            break
        except Interrupted:
            with pytest.raises(CannotOpen, match="was not finished"):
                (other if back else database).open()
    assert moved.resumed
    before = snapshot(file.open())
    assert snapshot((other if back else database).open()) == before


KILLED = """
import os, signal, sys
from penstock.migration.migrate import migrate

steps = int(sys.argv[3])
def report(done, total):
    global steps
    steps -= 1
    if steps == 0:
        os.kill(os.getpid(), signal.SIGKILL)
migrate(sys.argv[1], sys.argv[2], step_rows=3, progress=report, clock=lambda: int(sys.argv[4]))
"""


def test_a_killed_move_resumes(stores: Stores) -> None:
    file, database, _ = stores
    source, target = fill_and_close(file).url, database.url
    for steps in (15, 30):
        arguments = (source, target, str(steps), str(file.clock()))
        killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert migrate(source, target, clock=file.clock).resumed
    assert snapshot(database.open()) == snapshot(file.open())


def test_a_source_changed_during_the_move_is_refused(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    with pytest.raises(Interrupted):
        migrate(file.url, database.url, progress=interrupt_after(3))
    file.open().push("meanwhile", queue="q")
    file.close()
    with pytest.raises(SourceChanged):
        migrate(file.url, database.url)


def test_a_change_without_a_counter_is_found_by_the_comparison(stores: Stores) -> None:
    file, database, _ = stores
    held = fill(file.open())["held"]
    file.close()
    with pytest.raises(Interrupted):
        migrate(file.url, database.url, step_rows=1_000, progress=interrupt_after(14))
    file.open().extend(held, lease_ms=5)
    file.close()
    with pytest.raises(MoveDiffers):
        migrate(file.url, database.url)
    with pytest.raises(CannotOpen):
        database.open()


def test_a_store_that_is_open_elsewhere_is_refused(stores: Stores) -> None:
    file, database, back = stores
    fill_and_close(file).open()
    with pytest.raises(StoreBusy, match="open"):
        migrate(file.url, database.url)
    file.close()
    database.open()
    with pytest.raises(StoreBusy, match="others use"):
        migrate(file.url, database.url)
    database.close()
    migrate(file.url, database.url)
    database.open()
    with pytest.raises(StoreBusy):
        migrate(database.url, back.url)


def test_a_target_that_is_not_empty_is_refused(stores: Stores) -> None:
    file, database, back = stores
    fill_and_close(file)
    database.open().push("mine")
    database.close()
    with pytest.raises(TargetNotEmpty):
        migrate(file.url, database.url)
    back.open().push("mine")
    back.close()
    with pytest.raises(TargetNotEmpty):
        migrate(database.url, back.url)
    assert database.open().counts() == {"ready": 1}


def test_an_unfinished_target_accepts_only_its_own_source(stores: Stores) -> None:
    file, database, other = stores
    fill_and_close(file)
    with pytest.raises(Interrupted):
        migrate(file.url, database.url, progress=interrupt_after(3))
    fill_and_close(other)
    with pytest.raises(TargetNotEmpty):
        migrate(other.url, database.url)
    assert migrate(file.url, database.url).resumed


def test_a_move_needs_a_source_and_two_different_stores(stores: Stores) -> None:
    file, database, back = stores
    with pytest.raises(CannotOpen, match="no file"):
        migrate(file.url, database.url)
    with pytest.raises(CannotOpen, match="no Penstock tables"):
        migrate(database.url, back.url)
    with pytest.raises(InvalidInput):
        migrate(file.url, back.url)
    with pytest.raises(InvalidInput):
        migrate(database.url, database.url)
    for nothing in ("sqlite:///", ":memory:", "http://127.0.0.1:8888"):
        with pytest.raises(InvalidInput, match="no file"):
            migrate(database.url, nothing)


def stream_snapshot(streams: Streams) -> dict[str, object]:
    """Return everything that can be read from streams, except values that depend on the current time."""
    world: dict[str, object] = {}
    for info in streams.list_streams():
        records = streams.read(info.name, info.first, limit=10_000).records if info.next > info.first else []
        positions = [(each.name, each.offset, each.kind, each.created_ms) for each in streams.consumers(info.name)]
        world[info.name] = (info.options, info.created_ms, info.first, info.next, records, positions)
    return world


def fill_streams(path: Path) -> dict[str, object]:
    with closing(FileStreams(streams_beside(path))) as streams:
        streams.create("empty")
        streams.create("n/t/deep", StreamOptions(retention_ms=60_000))
        streams.append("n/t/deep", [NewRecord(b'{"a": 1}', Content.JSON), b"", b"\xff" * 200_000])
        streams.commit("n/t/deep", "reader", 1)
        streams.create_consumer("n/t/deep", "idle", kind="pipeline")
        streams.create("long", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN, retention_bytes=1))
        for number in range(40):
            streams.append("long", [str(number).encode() * 20_000, b"x"])
        streams.trim("long")
        assert streams.show("long").first > 0
        return stream_snapshot(streams)


def test_streams_moved_there_and_back_are_unchanged(stores: Stores) -> None:
    file, database, back = stores
    fill_and_close(file)
    before = fill_streams(file.path)
    there = migrate(file.url, database.url)
    assert (there.streams, there.left_behind) == (3, {})
    with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
        assert stream_snapshot(streams) == before
        assert all(not streams.check(name).findings for name in before)
    again = migrate(database.url, str(back.path))
    assert (again.records, again.streams_checksum) == (there.records, there.streams_checksum)
    with closing(FileStreams(streams_beside(back.path))) as files:
        assert stream_snapshot(files) == before
        assert files.append("n/t/deep", [b"on"]).first == 3


def test_moved_streams_continue_at_their_offsets(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    fill_streams(file.path)
    migrate(file.url, database.url)
    with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
        end = streams.show("long").next
        assert streams.append("long", [b"on"]).first == end
        assert [record.data for record in streams.next("n/t/deep", "reader").records] == [b"\xff" * 200_000]


def test_records_missing_from_the_index_after_a_power_cut_are_moved(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    root = streams_beside(file.path)
    with closing(FileStreams(root)) as streams:
        streams.create("s")
        streams.append("s", [b"first"])
        folder = streams.folder("s")
    synced_earlier = {path: path.read_bytes() for path in folder.iterdir() if path.suffix != ".log"}
    with closing(FileStreams(root)) as streams:
        streams.append("s", [b"second"])
    for path, data in synced_earlier.items():
        path.write_bytes(data)
    migrate(file.url, database.url)
    with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
        assert [record.data for record in streams.read("s", 0).records] == [b"first", b"second"]


def test_a_stream_with_a_gap_is_moved_once_it_is_repaired(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    with closing(FileStreams(streams_beside(file.path))) as streams:
        streams.create("s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN))
        for _ in range(3):
            streams.append("s", [bytes(SEGMENT_BYTES_MIN)])
        (streams.folder("s") / file_name(1)).unlink()
    with pytest.raises(Damaged, match="records 1 to 1 of stream 's' are gone"):
        migrate(file.url, database.url)
    with closing(FileStreams(streams_beside(file.path))) as streams:
        streams.repair("s")
    migrate(file.url, database.url)
    with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
        assert streams.next_offset("s") == 3


def test_streams_are_left_behind_only_on_request(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    fill_streams(file.path)
    moved = migrate(file.url, database.url, leave_streams=True)
    assert (moved.streams, moved.left_behind) == (0, {"streams": 3})


def test_a_stream_with_an_active_writer_is_not_moved(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    with closing(FileStreams(streams_beside(file.path))) as streams:
        streams.create("s")
        streams.append("s", [b"a"])
        with pytest.raises(StoreBusy, match="another process writes"):
            migrate(file.url, database.url)


def test_existing_streams_of_the_target_are_left_alone(stores: Stores) -> None:
    file, database, _ = stores
    fill_and_close(file)
    fill_streams(file.path)
    with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
        streams.create("mine")
    with pytest.raises(TargetNotEmpty):
        migrate(file.url, database.url)


@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_move_of_streams_resumes(stores: Stores, there: bool) -> None:
    file, database, back = stores
    fill_and_close(file)
    before = fill_streams(file.path)
    if not there:
        migrate(file.url, database.url)
    source, target = (file.url, database.url) if there else (database.url, str(back.path))
    side = PostgresStreamSide if there else FileStreamEndpoint
    for steps in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            left, append = [steps], side.append

            def interrupted(self: Any, *args: Any, left: list[int] = left, append: Any = append) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                append(self, *args)

            patch.setattr(side, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                migrate(source, target)
    moved = migrate(source, target)
    assert moved.resumed
    if there:
        with closing(PostgresStreams(str(database.path), schema=database.schema)) as streams:
            assert stream_snapshot(streams) == before
    else:
        with closing(FileStreams(streams_beside(back.path))) as files:
            assert stream_snapshot(files) == before


def test_the_journal_stays_complete_with_its_file(stores: Stores) -> None:
    file, database, _ = stores
    journalled = StoreUnderTest(file.path, persists=True)
    fill(journalled)
    journalled.push("told later", queue="q")
    journalled.store.close()
    moved = migrate(file.url, database.url)
    journalled.check()
    assert moved.left_behind == {"journal_records": journalled.open_another().journal_bounds()[1]}  # type: ignore[attr-defined]
    journalled.close_all()


@pytest.mark.parametrize("early", [True, False])
def test_the_journal_of_a_target_accounts_for_everything_moved(stores: Stores, early: bool) -> None:
    """The journal begins either before the migration or when the target is first opened."""
    file, database, back = stores
    leases = fill(file.open())
    file.close()
    targets: list[tuple[File | Database, File | Database, str]] = [
        (file, database, "held"),
        (database, back, "extended"),
    ]
    for source, target, lease in targets:
        target._journal = True
        if early:
            target.open().close()
        migrate(source.url, target.url)
        assert target.open().ack(leases[lease]) == [Settled.OK]
        target.push("more", queue="keyed")
        target.check()
        target.close()


def test_characters_that_postgresql_cannot_store_are_replaced(stores: Stores) -> None:
    file, database, _ = stores
    file.open().push("x")
    file.nack(file.lease_one(), error="a\0b")
    file.close()
    migrate(file.url, database.url)
    (message,) = database.open().pages(State.SCHEDULED)
    assert [failure.error for failure in message.errors] == ["a\N{REPLACEMENT CHARACTER}b"]
