"""Staged rows reach a queue or stream once and in order, however often the write is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import connect
from penstock.client._sync.http_session import Session
from penstock.client.transport_errors import RequestFailed
from penstock.core.model import Content, PushItem, State
from penstock.core.redact import place_in
from penstock.errors import Conflict, InvalidInput, PayloadTooLarge, StoreUnreachable, WrongType
from penstock.log.model import StreamOptions
from penstock.pipeline.sink import targets
from penstock.pipeline.sink.rows import message_of
from penstock.pipeline.sink.staging import Batch, stage
from penstock.pipeline.sink.targets import SinkTarget, target_of
from penstock.pipeline.source.log_sources import location_of
from penstock.pipeline.source.offset_ranges import OffsetRange
from penstock.pipeline.source.options import WriteOptions, write_options
from penstock.store.factory import open_streams
from tests.integration.serving import running
from tests.postgres import cluster

ROWS = 25


class Killed(Exception):
    pass


@pytest.fixture(params=["folder", "postgres", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "server":
            server = stack.enter_context(running(tmp_path / "data"))
            yield f"http://127.0.0.1:{server.port}"
        elif request.param == "postgres":
            yield f"{cluster().url}&schema={request.getfixturevalue('schema')}"
        else:
            (tmp_path / "data").mkdir()
            yield str(tmp_path / "data")


@pytest.fixture
def options(where: str, tmp_path: Path) -> WriteOptions:
    given = {"url": where, "stream": "a/b/c", "name": "run 1", "staging": str(tmp_path / "staging")}
    return write_options(given)


def staged(options: WriteOptions, rows: list[Any]) -> Batch:
    table = pa.table({"data": rows})
    batch = Batch(options, "run 1")
    batch.decide([stage(table.to_batches(max_chunksize=10), options)])
    return batch


def records(where: str) -> list[Any]:
    with closing(location_of(where, "a/b/c").open()) as log:
        part = OffsetRange(log.first_offset, log.next_offset)
        return [data for batch in log.read(part, ["data"]) for data in batch["data"].to_pylist()]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (targets.StoreStream, targets.ServerStream):
        monkeypatch.setattr(target, "rows_max", 10)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_a_driver_killed_before_or_after_any_append_adds_each_record_once(
    where: str, options: WriteOptions, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    rows = [b"%d" % (number % 3) for number in range(ROWS)]
    batch = staged(options, rows)
    with target_of(options) as target:
        kind = type(target)
    send, left = kind.send, sent

    def die_after_appends(self: SinkTarget, *what: Any) -> Any:
        nonlocal left
        left -= 1
        answer = send(self, *what) if left >= 0 else None
        if left <= 0:
            raise Killed
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(kind, "send", die_after_appends)
        with pytest.raises(Killed):
            batch.send()
    # Another writer appends equal records meanwhile.
    with target_of(options) as other:
        other.send([b"0", b"1"], "another", None)
    Batch(options, "run 1").send()
    Batch(options, "run 1").send()
    found = records(where)
    at = min(10 * sent, ROWS)
    assert found == [*rows[:at], b"0", b"1", *rows[at:]]
    assert not list(options.staging.glob("*.arrow"))


def test_text_stays_text_and_a_missing_stream_is_created(where: str, options: WriteOptions) -> None:
    staged(options, ["one", "zwei", "três"]).send()
    assert records(where) == [b"one", b"zwei", "três".encode()]


def test_a_null_record_is_refused(options: WriteOptions) -> None:
    with pytest.raises(InvalidInput, match="null"):
        staged(options, [b"a", None]).send()


@pytest.mark.parametrize("row", [7, True, [1, 2], {"a": "b"}])
def test_an_invalid_record_row_is_refused_before_it_is_staged(tmp_path: Path, row: Any) -> None:
    options = write_options({"url": str(tmp_path), "stream": "s", "staging": str(tmp_path / "staging")})
    with pytest.raises(WrongType, match="string or binary"):
        stage(pa.table({"data": [row]}).to_batches(), options)
    assert not list(options.staging.iterdir())


def test_a_record_above_the_streams_limit_is_left_out_and_reported_once(where: str, options: WriteOptions) -> None:
    rows = [b"a", b"b" * (StreamOptions().record_bytes + 1), b"c"]
    with pytest.raises(PayloadTooLarge, match="1 records were too large for the stream 'a/b/c'"):
        staged(options, rows).publish([])
    Batch(options, "run 1").publish([])
    assert records(where) == [b"a", b"c"]


@pytest.mark.parametrize("name", ["", "two\nlines", "ü" * 100])
def test_an_invalid_name_is_refused_before_anything_is_staged(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput) as error:
        write_options({"url": str(tmp_path), "queue": "q", "name": name})
    assert error.value.field == "name"


def test_a_name_belongs_to_one_target(options: WriteOptions, where: str) -> None:
    staged(options, [b"a"]).send()
    other = write_options({"url": where, "queue": "q", "name": "run 1", "staging": str(options.staging)})
    with pytest.raises(Conflict, match="went into the stream 'a/b/c'"):
        Batch(other, "run 1").manifest()


@pytest.mark.parametrize("given", [{}, {"queue": "q", "stream": "s"}])
def test_either_a_queue_or_a_stream_is_required(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="one of the options queue and stream") as error:
        write_options({"url": "here", **given})
    assert "staging" in (error.value.hint or "")


def test_a_queue_smaller_than_a_chunk_slows_the_write_but_does_not_fail_it(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server, server.client() as client:
        path = client.queue("small", max_size=7)
        url = f"http://127.0.0.1:{server.port}"
        options = write_options({"url": url, "queue": "small", "staging": str(tmp_path / "staging")})
        table = pa.table({"payload": [str(number) for number in range(30)]})
        batch = Batch(options, "run")
        batch.decide([stage(table.to_batches(), options)])
        sending = threading.Thread(target=batch.send)
        sending.start()
        found: list[str] = []
        while len(found) < 30:
            polled = client.post(f"{path}/poll?batch=5&wait_ms=20000").json["messages"]
            found += [message["payload"] for message in polled]
            acked = [{"id": message["id"], "token": message["token"]} for message in polled]
            assert client.post(f"{path}/ack", {"items": acked}).status == 200
        sending.join()
    assert found == [str(number) for number in range(30)]


def test_files_of_killed_tasks_are_removed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = write_options({"url": str(tmp_path), "stream": "s", "staging": str(tmp_path / "staging")})
    left = stage(pa.table({"data": [b"left"]}).to_batches(), options)
    wanted = stage(pa.table({"data": [b"wanted"]}).to_batches(), options)
    Batch(options, "one").decide([wanted])
    monkeypatch.setattr("penstock.pipeline.sink.staging.STALE_SECONDS", -1)
    now = stage(pa.table({"data": [b"now"]}).to_batches(), options)
    other = Batch(options, "other")
    other.decide([now])
    other.send()
    assert [each.name for each in options.staging.glob("*.arrow")] == [wanted.file]
    assert left.file != wanted.file


def test_a_repeat_is_recognised_from_an_offset_on_however_old_it_is(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        client.post("/streams", {"name": "s"})
        body = {"records": ["a", "b"]}
        assert client.post("/streams/s/records", body, idempotency_key="k").json["first"] == 0
    with running(tmp_path) as server, server.client() as client:
        assert server.app.streams is not None
        server.app.streams._keys._recall_until = 0.0  # Expire the cached keys, as a quarter of an hour would.
        assert client.post("/streams/s/records?since=0", body, idempotency_key="k").json["first"] == 0
        assert client.post("/streams/s/records?since=1", body, idempotency_key="k2").json["first"] == 2
        assert client.post("/streams/s/records?since=0", body).status == 422
    with closing(open_streams(str(tmp_path / "penstock.db"))) as streams:
        assert streams.show("s").next == 4


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("where", ["folder", "postgres"], indirect=True)
def test_a_chunk_appended_before_its_connection_was_lost_is_not_appended_again(
    where: str, options: WriteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [b"%d" % number for number in range(ROWS)]
    batch = staged(options, rows)
    with closing(open_streams(options.url.removeprefix("sqlite:///"))) as streams:
        kind = type(streams)
    append, losses = kind.append, iter([False, True, False, True])

    def append_then_disconnect(self: Any, *what: Any) -> Any:
        answer = append(self, *what)
        if next(losses, False):
            raise StoreUnreachable("the connection was lost", maybe_done=True)
        return answer

    monkeypatch.setattr(kind, "append", append_then_disconnect)
    batch.send()
    assert records(where) == rows


@pytest.mark.usefixtures("small_chunks")
def test_a_request_repeated_at_another_server_is_appended_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [b"%d" % number for number in range(ROWS)]
    with running(tmp_path / "data") as server:
        url = f"http://127.0.0.1:{server.port}"
        options = write_options({"url": url, "stream": "a/b/c", "staging": str(tmp_path / "staging")})
        attempt, losses = Session._try, iter([True, False] * ROWS)

        def append_then_disconnect(self: Session, request: bytes, *what: Any) -> Any:
            answer = attempt(self, request, *what)
            if request.startswith(b"POST") and b"/records" in request.partition(b"\r\n")[0] and next(losses):
                assert server.app.streams is not None
                server.app.streams._keys._known.clear()
                server.app.streams._keys._recall_until = 0.0
                return RequestFailed("the connection was lost", sent=True)
            return answer

        monkeypatch.setattr(Session, "_try", append_then_disconnect)
        staged(options, rows).send()
        assert records(url) == rows


def queue_of(where: str, tmp_path: Path) -> WriteOptions:
    return write_options({"url": where, "queue": "mail", "staging": str(tmp_path / "staging")})


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"payload": "{no json", "content": "json"}, "payload"),
        ({"payload": b'"\xff"', "content": "json"}, "payload"),
        ({"payload": b"a", "content": "xml"}, "content"),
        ({"payload": None}, "payload"),
        ({"payload": 7}, "payload"),
        ({"payload": "a", "priority": "one"}, "priority"),
        ({"payload": "a", "ttl_ms": 0}, "ttl_ms"),
        ({"payload": "a", "key": 7}, "key"),
        ({"payload": "a", "headers": {"tries": b"3"}}, "headers"),
        ({"payload": "a", "headers": "tries=3"}, "headers"),
        ({"payload": "a", "headers": "3"}, "headers"),
        ({"payload": b"a" * (16 << 20) + b"a"}, "payload"),
    ],
)
def test_an_invalid_message_row_is_refused_before_it_is_staged(tmp_path: Path, row: Any, field: str) -> None:
    (tmp_path / "data").mkdir()
    options = queue_of(str(tmp_path / "data"), tmp_path)
    with pytest.raises(InvalidInput) as error:
        stage(pa.Table.from_pylist([row]).to_batches(), options)
    assert error.value.field == field
    assert not list(options.staging.iterdir())


@pytest.mark.parametrize("headers", [[("x", "1"), ("y", None)], {"x": "1", "y": None}, '{"x": 1, "y": null}'])
def test_headers_are_text_and_null_headers_are_dropped(headers: Any) -> None:
    assert message_of({"payload": "a", "headers": headers}, "key").headers == {"x": "1"}


def test_numbers_can_be_text() -> None:
    message = message_of({"payload": "a", "priority": "5", "delay_ms": "100", "ttl_ms": ""}, "key")
    assert (message.priority, message.delay_ms, message.ttl_ms) == (5, 100, None)


@pytest.mark.parametrize("where", ["folder", "postgres"], indirect=True)
def test_the_largest_valid_message_is_pushed_without_a_server(where: str, tmp_path: Path) -> None:
    options = queue_of(where, tmp_path)
    large = b"a" * (8 << 20)
    Batch(options, "run").publish([stage(pa.table({"payload": [b"small", large]}).to_batches(), options)])
    with connect(options.url) as client:
        assert {message.payload for message in client.queue("mail").peek(limit=10)} == {b"small", large}


def test_a_message_above_the_servers_limit_is_left_out_and_reported_once(tmp_path: Path) -> None:
    with running(tmp_path / "data", payload_bytes=1_000, batch_max=100) as server:
        url = f"http://127.0.0.1:{server.port}"
        options = queue_of(url, tmp_path)
        rows = [b"a" * (2_000 if number in (3, 250) else 1 + number) for number in range(300)]
        found = stage(pa.table({"payload": rows}).to_batches(), options)
        with pytest.raises(PayloadTooLarge, match="2 messages"):
            Batch(options, "run").publish([found])
        Batch(options, "run").publish([])
        with connect(url) as client:
            found = sorted(len(message.payload) for message in client.queue("mail").peek(limit=1_000))
    assert found == sorted(len(row) for row in rows if len(row) < 1_000)


def test_a_name_belongs_to_one_store(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    here, there = (queue_of(str(place), tmp_path) for place in places)
    Batch(here, "run").publish([stage(pa.table({"payload": ["a"]}).to_batches(), here)])
    with pytest.raises(Conflict, match=r"went into the queue 'mail' of .*/one/penstock.db"):
        Batch(there, "run").manifest()


def test_a_manifest_without_a_store_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options = queue_of(str(tmp_path / "data"), tmp_path)
    found = stage(pa.table({"payload": ["a"]}).to_batches(), options)
    Batch(options, "run").decide([found])
    [manifest] = options.staging.glob("run-*/*/manifest")
    manifest.write_text(f"""{{"into":"queue 'mail'","files":["{found.file}"],"rows":1,"done":0,"since":null}}""")
    assert Batch(options, "run").send().done == 1


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:////var/lib/a?b.db", "/var/lib/a?b.db"),
        ("http://Host:8888/", "http://host:8888"),
        ("postgresql://me:p@ss@db/queues?sslmode=require&schema=s", "postgresql://db/queues?schema=s"),
        ("postgresql:///queues?password=secret&host=/run", "postgresql:///queues?host=%2Frun"),
    ],
)
def test_a_store_is_named_without_credentials(url: str, place: str) -> None:
    assert place_in(url) == place


def test_a_payload_has_the_same_content_in_every_store(where: str, tmp_path: Path) -> None:
    rows = [
        {"payload": b"text", "content": "text"},
        {"payload": "söß".encode(), "content": None},
        {"payload": b'{"n": 1.50}', "content": "json"},
        {"payload": b"\xff", "content": "text"},
    ]
    options = write_options({"url": where, "queue": "mail", "staging": str(tmp_path / "staging")})
    Batch(options, "run").publish([stage(pa.Table.from_pylist(rows).to_batches(), options)])
    url = where if "://" in where else f"sqlite:///{where}/penstock.db"
    with connect(url) as client:
        found = client.transport.peek("mail", State.READY, 10, None)
    assert [message.payload for message in found] == [row["payload"] for row in rows]
    assert [message.content for message in found][:3] == ["text", "bytes", "json"]


def test_a_repeated_named_write_must_have_the_same_rows(tmp_path: Path) -> None:
    options = write_options({"url": str(tmp_path), "queue": "mail", "name": "daily"})

    def write(*parts: list[str]) -> None:
        tables = [pa.table({"payload": part, "headers": [{"a": "1", "b": "2"}] * len(part)}) for part in parts]
        Batch(options, "daily").publish([stage(table.to_batches(), options) for table in tables], checked=True)

    write(["a", "b"], ["c"])
    write(["c", "a"], [], ["b"])
    for other in (["a", "b", "d"], ["a", "b"], ["a", "b", "c", "c"], []):
        with pytest.raises(Conflict, match="an earlier write of this name added 3 other rows"):
            write(other)
    with connect(f"sqlite:///{tmp_path}/penstock.db") as client:
        assert [message.payload for message in client.queue("mail").peek(limit=10)] == ["a", "b", "c"]
    assert not list(options.staging.glob("*.arrow"))


def test_an_interrupted_write_is_finished_before_other_rows_are_refused(tmp_path: Path) -> None:
    options = write_options({"url": str(tmp_path), "queue": "mail", "name": "daily"})
    Batch(options, "daily").decide([stage(pa.table({"payload": ["a", "b"]}).to_batches(), options)])
    with pytest.raises(Conflict, match="none of these 1 were added"):
        Batch(options, "daily").publish([stage(pa.table({"payload": ["c"]}).to_batches(), options)], checked=True)
    with connect(f"sqlite:///{tmp_path}/penstock.db") as client:
        assert [message.payload for message in client.queue("mail").peek(limit=10)] == ["a", "b"]


def test_text_pushed_through_a_server_stays_text(tmp_path: Path) -> None:
    with running(tmp_path) as server, connect(f"http://127.0.0.1:{server.port}") as client:
        client.create_queue("mail")
        client.transport.push("mail", [PushItem(payload="söß".encode(), content=Content.TEXT)])
        stored, _ = server.app.broker.store.peek("mail")
    assert [(each.payload, each.content) for each in stored] == [("söß".encode(), Content.TEXT)]
