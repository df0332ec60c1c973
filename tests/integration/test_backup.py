"""A backup of a file in use is complete and consistent, and a restored file continues from there."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.errors import CannotOpen, CorruptRecord
from penstock.journal.drainer import journal_folder
from penstock.journal.reader import JournalReader
from penstock.log.manifest import STREAM
from penstock.log.record import HEADER_BYTES
from penstock.log.segment_header import HEAD_BYTES
from penstock.log.streams import FLAT, FileStreams, streams_beside
from penstock.ops.backup import back_up
from penstock.store.sqlite import SqliteStore
from tests.conformance.recount import check_tables
from tests.conformance.replay import check_journal
from tests.conformance.support import eventually
from tests.integration.command_line import penstock as command
from tests.integration.serving import Running, running

pytestmark = pytest.mark.timeout(180)


def change_everything(server: Running, stop: threading.Event) -> None:
    """Keep changing everything in the file: queues, streams and consumer positions."""
    with penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        queue, stream = client.create_queue("q", exist_ok=True), client.create_stream("s", exist_ok=True)
        number = 0
        while not stop.is_set():
            queue.push_many([number, number + 1])
            stream.append_many([str(number), str(number + 1)])
            stream.commit("reader", number)
            for message in queue.lease(1):
                message.ack()
            number += 2


def check(path: Path) -> int:
    """Check queues, journal and stream of a file that nobody uses; return the number of records in the stream."""
    with closing(sqlite3.connect(path)) as db:
        check_tables(db)
        check_journal(db, journal_folder(path))
        next_offset = db.execute("SELECT max(first_offset + records) FROM penstock_journal").fetchone()[0]
    with closing(JournalReader(journal_folder(path))) as journal:
        assert journal.next_offset() <= next_offset
        for consumer in journal.consumers():
            assert consumer.offset is None or consumer.offset < journal.next_offset()
    with closing(FileStreams(streams_beside(path))) as streams:
        records = streams.read("s", limit=10_000).records
        assert [record.data for record in records] == [str(number).encode() for number in range(len(records))]
        (reader,) = streams.consumers("s")
        assert reader.offset is not None
        assert reader.offset < len(records)
        return len(records)


def test_a_backup_during_traffic_is_consistent(tmp_path: Path) -> None:
    stop = threading.Event()
    with running(tmp_path / "data") as server, server.client() as client:
        worker = threading.Thread(target=change_everything, args=(server, stop))
        worker.start()
        try:
            eventually(lambda: client.get("/streams/s").status == 200 and client.get("/streams/s").json["next"] > 4)
            offset = client.get("/journal").json["next"]
            client.ask("PUT", "/journal/consumers/lake", {"offset": offset - 1})
            sizes = []
            with closing(SqliteStore(server.path)) as store:
                for number in range(3):
                    copy = tmp_path / f"copy{number}.db"
                    before = client.get("/streams/s").json["next"]
                    copied = back_up(store, copy)
                    eventually(lambda before=before: client.get("/streams/s").json["next"] > before)
                    assert copied.streams == 1
                    assert copied.journal_records > 0
                    assert copied.stream_records >= before
                    sizes.append(check(copy))
        finally:
            stop.set()
            worker.join()
    assert sizes == sorted(sizes)
    assert not list(tmp_path.glob("*.partial*"))


def test_a_restored_stream_continues_where_the_backup_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as server, penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        queue, stream = client.create_queue("q"), client.create_stream("s")
        queue.push("before")
        stream.append("before")
        stream.commit("reader", 0)
        made = command("backup", str(tmp_path / "copy.db"), "--data", str(data), "--json")
        assert made.code == 0, made.err
        assert (made.json["streams"], made.json["stream_records"]) == (1, 1)
        queue.push("after")
        stream.append_many(["after"] * 3)
        in_use = command("restore", str(tmp_path / "copy.db"), "--data", str(data), "--force")
        assert in_use.code == 1
        assert in_use.err == f"error: another process has {data / 'penstock.db'} open (stop it first)\n"
    restored = command("restore", str(tmp_path / "copy.db"), "--data", str(data), "--force", "--json")
    assert restored.code == 0, restored.err
    assert restored.json["stream_records"] == 1
    with running(data) as server, penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        assert [message.payload for message in client.queue("q").peek(10)] == ["before"]
        client.queue("q").push("again")
        assert client.stream("s").append("again").first == 1
        assert [record.data for record in client.stream("s").next("reader")] == ["again"]
    check_after(data / "penstock.db")
    assert not list(data.glob("*.old")) + list(data.glob("*.partial*"))


def check_after(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        check_tables(db)
        check_journal(db, journal_folder(path))


def test_restoring_a_backup_without_streams_keeps_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with penstock.connect(f"sqlite:///{path}") as client:
        client.create_queue("q")
    assert command("backup", str(tmp_path / "copy.db"), "--db", str(path)).code == 0
    assert not streams_beside(tmp_path / "copy.db").exists()
    with penstock.connect(f"sqlite:///{path}") as client:
        client.create_stream("s").append("kept")
    assert command("restore", str(tmp_path / "copy.db"), "--db", str(path), "--force").code == 0
    with penstock.connect(f"sqlite:///{path}") as client:
        assert [record.data for record in client.stream("s").read()] == ["kept"]


def test_damage_does_not_prevent_backing_up_and_restoring_the_rest(tmp_path: Path) -> None:
    path, copy = tmp_path / "q.db", tmp_path / "copy.db"
    with closing(SqliteStore(path, journal=True)):
        pass
    with penstock.connect(f"sqlite:///{path}") as client:
        client.create_queue("q").push("kept")
        for name in ("first", "middle", "nameless", "sound"):
            client.create_stream(name).append_many(["a", "b", "c"])
            client.stream(name).commit("reader", 0)
    corrupt(stream_file(path, "first"), HEAD_BYTES, HEAD_BYTES + HEADER_BYTES)
    corrupt(stream_file(path, "middle"), HEAD_BYTES + 2 * HEADER_BYTES + 1)
    corrupt(stream_file(path, "nameless").with_name(STREAM), 5)
    [journal] = journal_folder(path).glob("*.log")
    corrupt(journal, HEAD_BYTES + HEADER_BYTES)
    made = command("backup", str(copy), "--db", str(path), "--json")
    assert made.code == 3, made.err
    assert (made.json["streams"], made.json["stream_records"]) == (4, 2 + 2 + 3)
    assert len(made.json["damaged"]) == 4
    assert all(line in made.err for line in made.json["damaged"])
    assert "record 1 of stream 'middle' is damaged" in made.err
    restored = command("restore", str(copy), "--db", str(tmp_path / "again.db"), "--json")
    assert restored.code == 3, restored.err
    [nameless] = restored.json["damaged"]
    assert "nameless" in nameless
    for each in (copy, tmp_path / "again.db"):
        assert command("stream", "repair", "nameless", "--yes", "--db", str(each)).code == 0
        with penstock.connect(f"sqlite:///{each}") as client:
            assert client.queue("q").peek()[0].payload == "kept"
            for name, lost in (("first", 0), ("middle", 1), ("nameless", None), ("sound", None)):
                served = {}
                for offset in range(3):
                    if offset == lost:
                        with pytest.raises(CorruptRecord):
                            client.stream(name).read(offset)
                    else:
                        served[offset] = client.stream(name).read(offset, limit=1)[0].data
                assert served == {offset: data for offset, data in enumerate("abc") if offset != lost}
                assert client.stream(name).append("d").first == 3
                assert [consumer.offset for consumer in client.stream(name).consumers()] == [0]
        with closing(FileStreams(streams_beside(each))) as streams:
            assert streams.read("middle", 2).records[0].data == b"c"


def stream_file(path: Path, stream: str) -> Path:
    [file] = (streams_beside(path) / FLAT / stream).glob("*.log")
    return file


def corrupt(file: Path, *places: int) -> None:
    data = bytearray(file.read_bytes())
    for place in places:
        data[place] ^= 1
    file.write_bytes(data)


def test_a_backup_never_overwrites_another(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "q.db")) as store:
        streams_beside(tmp_path / "copy.db").mkdir()
        with pytest.raises(CannotOpen, match="exists already"):
            back_up(store, tmp_path / "copy.db")
        assert sorted(each.name for each in tmp_path.glob("copy*")) == ["copy.db.streams"]


def test_a_backup_path_need_not_be_utf_8(tmp_path: Path) -> None:
    penstock.connect(f"sqlite:///{tmp_path}/q.db").close()
    name = f"{tmp_path}/\udcff"
    result = command("backup", name, "--db", f"{tmp_path}/q.db", "--json")
    assert (result.code, result.json["backup"]) == (0, name)
    result = command("backup", f"{name}2", "--db", f"{tmp_path}/q.db")
    assert (result.code, result.err) == (0, "")
    assert "dcff2" in result.out


def test_a_stream_with_an_active_writer_is_not_restored(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with penstock.connect(f"sqlite:///{path}") as client:
        client.create_queue("q")
        client.create_stream("s").append("a")
    assert command("backup", str(tmp_path / "copy.db"), "--db", str(path)).code == 0
    with closing(FileStreams(streams_beside(path))) as streams:
        streams.append("s", [b"b"])
        refused = command("restore", str(tmp_path / "copy.db"), "--db", str(path), "--force")
        assert (refused.code, "another process writes" in refused.err) == (1, True)


def test_streams_without_their_database_are_overwritten_only_with_force(tmp_path: Path) -> None:
    path, restore = tmp_path / "q.db", ("restore", str(tmp_path / "copy.db"), "--db", str(tmp_path / "q.db"))
    with penstock.connect(f"sqlite:///{path}") as client:
        client.create_stream("s").append("a")
    assert command("backup", str(tmp_path / "copy.db"), "--db", str(path)).code == 0
    with penstock.connect(f"sqlite:///{path}") as client:
        client.stream("s").append("b")
    path.unlink()
    refused = command(*restore)
    assert (refused.code, f"{streams_beside(path)} exists already" in refused.err) == (1, True)
    with closing(FileStreams(streams_beside(path))) as streams:
        assert streams.next_offset("s") == 2
    assert command(*restore, "--force").code == 0
    with closing(FileStreams(streams_beside(path))) as streams:
        assert streams.next_offset("s") == 1
