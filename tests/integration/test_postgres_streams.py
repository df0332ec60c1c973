"""Streams in a database: shared by servers, SDK and command line, and resumed after an outage."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import CorruptRecord, StoreUnreachable
from penstock.log.postgres.streams import PostgresStreams
from tests.conformance.support import eventually
from tests.integration import command_line
from tests.integration.serving import running
from tests.postgres import Cluster, cluster

pytestmark = pytest.mark.timeout(120)


def test_servers_on_one_database_share_streams_and_wake_each_others_readers(store: str, tmp_path: Path) -> None:
    with (
        running(tmp_path, store=store) as one,
        running(tmp_path, store=store) as two,
        one.client() as here,
        two.client() as there,
    ):
        assert here.post("/streams", {"name": "s"}).status == 201
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(there.get, "/streams/s/records?from=0&wait_ms=60000")
            eventually(lambda: two.app.streams is not None and two.app.streams.log_waiters.waiting == 1)
            assert here.post("/streams/s/records", {"records": ["hello"]}).json["first"] == 0
            assert [each["data"] for each in waiting.result().json["records"]] == ["hello"]
        assert there.post("/streams/s/records", {"records": ["again"]}).json["first"] == 1
        shown = here.get("/streams/s").json
        assert (shown["next"], len(shown["segments"])) == (2, 1)
        assert 'penstock_stream_records{stream="s"} 2.0' in here.get("/metrics").body.decode()


def test_offsets_stay_dense_when_many_servers_append_at_once(store: str) -> None:
    writers = [PostgresStreams(store) for _ in range(4)]
    writers[0].create("s")

    def append(number: int) -> list[tuple[int, bytes]]:
        data = [b"%d-%d" % (number, each) for each in range(3)]
        done = writers[number % 4].append("s", data)
        return list(zip(range(done.first, done.last + 1), data, strict=True))

    with ThreadPoolExecutor(16) as pool:
        expected = sorted(pair for pairs in pool.map(append, range(120)) for pair in pairs)
    records = writers[1].read("s").records
    assert [(record.offset, record.data) for record in records] == expected
    assert [record.time_ms for record in records] == sorted(record.time_ms for record in records)
    for each in writers:
        each.close()


def test_a_reader_never_sees_a_gap(store: str) -> None:
    one, two, reader = (PostgresStreams(store) for _ in range(3))
    one.create("s")
    done = threading.Event()

    def append(streams: PostgresStreams) -> None:
        for _ in range(60):
            streams.append("s", [b"x"] * 5)

    def follow() -> list[int]:
        seen: list[int] = []
        while not done.is_set() or reader.next_offset("s") > len(seen):
            seen += [record.offset for record in reader.read("s", len(seen)).records]
        return seen

    with ThreadPoolExecutor(3) as pool:
        following = pool.submit(follow)
        for each in [pool.submit(append, streams) for streams in (one, two)]:
            each.result()
        done.set()
        assert following.result() == list(range(600))
    for streams in (one, two, reader):
        streams.close()


def test_an_append_with_a_cut_connection_is_done_once(store: str, schema: str) -> None:
    streams = PostgresStreams(store)
    streams.create("s")
    stop = threading.Event()
    kept: list[tuple[int, bytes]] = []
    cuts: list[int] = []

    def cut() -> None:
        with psycopg.connect(cluster().url, autocommit=True) as connection:
            while not stop.wait(0.01):
                # Cut an append at most three times, so that the test makes progress on a slow machine.
                if cuts.count(len(kept)) < 3:
                    found = connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = 'penstock' AND query LIKE %s",
                        (f'%"{schema}".append%',),
                    )
                    cuts.extend([len(kept)] * found.rowcount)

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        while len(kept) < 200 or len(cuts) < 20:
            number = b"%d" % len(kept)
            kept.append((streams.append("s", [number]).first, number))
    finally:
        stop.set()
        cutting.join()
    assert [(record.offset, record.data) for record in streams.read("s", limit=len(kept)).records] == kept
    assert [offset for offset, _ in kept] == list(range(len(kept)))
    streams.close()


def test_an_unreachable_database_is_reported_and_the_client_recovers() -> None:
    own = Cluster()
    try:
        streams = PostgresStreams(own.url)
        streams.create("s")
        streams.append("s", [b"before"])
        own.stop()
        with pytest.raises(StoreUnreachable):
            streams.read("s")
        own.start()

        def is_back() -> bool:
            try:
                return streams.append("s", [b"after"]).first == 1
            except StoreUnreachable:
                return False

        eventually(is_back)
        assert [record.data for record in streams.read("s").records] == [b"before", b"after"]
        streams.close()
    finally:
        own.remove()


def damage(schema: str, change: str) -> None:
    with psycopg.connect(cluster().url, autocommit=True) as connection:
        connection.execute(change.replace("penstock.", f"{schema}.").encode())


def test_a_damaged_record_is_never_served_and_can_be_skipped(store: str, schema: str) -> None:
    with closing(PostgresStreams(store)) as streams:
        streams.create("s")
        for number in range(3):
            streams.append("s", [b"%d-%d" % (number, each) for each in range(4)])
        damage(schema, "UPDATE penstock.batch SET data = set_byte(data, 27 + 25, 9) WHERE last = 7")
        assert [record.offset for record in streams.read("s").records] == [0, 1, 2, 3, 4]
        with pytest.raises(CorruptRecord) as raised:
            streams.read("s", 5)
        assert raised.value.offset == 5
        with pytest.raises(CorruptRecord):
            list(streams.read_arrow("s"))
        assert [finding.first for finding in streams.check("s").findings] == [5]
        assert streams.repair("s").ok
        page = streams.read("s")
        assert [record.offset for record in page.records] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert page.lost == 1
        assert sum(batch.num_rows for batch in streams.read_arrow("s")) == 11


def test_a_missing_batch_is_named_and_can_be_skipped(store: str, schema: str) -> None:
    with closing(PostgresStreams(store)) as streams:
        streams.create("s")
        for number in range(3):
            streams.append("s", [b"%d" % number] * 4)
        damage(schema, "DELETE FROM penstock.batch WHERE last = 7")
        with pytest.raises(CorruptRecord):
            streams.read("s", 4)
        (finding,) = streams.check("s").findings
        assert (finding.first, finding.last) == (4, 7)
        streams.repair("s")
        assert [record.offset for record in streams.read("s", 4).records] == [8, 9, 10, 11]


def test_a_dropped_stream_leaves_nothing_behind(store: str, schema: str) -> None:
    with closing(PostgresStreams(store)) as streams:
        streams.create("s")
        streams.append("s", [b"x" * 1000] * 2_000)
        streams.commit("s", "c", 5)
        streams.drop("s", force=True)
    with psycopg.connect(cluster().url) as connection:
        for table in ("stream", "batch", "segment", "consumer"):
            assert connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone() == (0,)


def test_the_command_line_works_on_a_database(store: str) -> None:
    place = command_line.Queues(("--store", store), "postgres")
    place.ok("stream", "create", "s")
    place.ok("stream", "append", "s", stdin=b'"one"\n"two"\n')
    assert [each["name"] for each in place.json("stream", "list")["streams"]] == ["s"]
    assert "two" in place.ok("stream", "read", "s")
    assert place.run("stream", "list", "--db", "x.db").code == 2


def test_the_sdk_shares_streams_with_a_server(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store) as server, penstock.connect(store) as direct:
        stream = direct.create_stream("s")
        stream.append_many([b"one", b"two"])
        with penstock.connect(f"http://127.0.0.1:{server.port}") as client:
            assert [record.data for record in client.stream("s").read(0)] == [b"one", b"two"]
