"""Staged rows reach a queue or a stream once, in order, however often their way is interrupted."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline import targets
from penstock.pipeline.logs import place_of
from penstock.pipeline.options import WriteOptions, write_options
from penstock.pipeline.parts import Part
from penstock.pipeline.staging import Batch, stage
from penstock.pipeline.targets import Target, target_of
from penstock.store.opening import open_streams
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
    file, count = stage(table.to_batches(max_chunksize=10), options.staging)
    batch = Batch(options, "run 1")
    batch.decide([file] if file else [], count)
    return batch


def records(where: str) -> list[Any]:
    with closing(place_of(where, "a/b/c").open()) as log:
        part = Part(log.first_offset, log.next_offset)
        return [data for batch in log.read(part, ["data"]) for data in batch["data"].to_pylist()]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (targets.StoreStream, targets.ServerStream):
        monkeypatch.setattr(target, "rows_max", 10)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_a_driver_that_dies_before_or_after_any_append_adds_each_record_once(
    where: str, options: WriteOptions, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    rows = [b"%d" % (number % 3) for number in range(ROWS)]
    batch = staged(options, rows)
    with target_of(options) as target:
        kind = type(target)
    send, left = kind.send, sent

    def dying(self: Target, *what: Any) -> Any:
        nonlocal left
        left -= 1
        answer = send(self, *what) if left >= 0 else None
        if left <= 0:
            raise Killed
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(kind, "send", dying)
        with pytest.raises(Killed):
            batch.send()
    # Others append the same meanwhile.
    with target_of(options) as other:
        other.send([b"0", b"1"], "another", None)
    Batch(options, "run 1").send()
    Batch(options, "run 1").send()
    found = records(where)
    at = min(10 * sent, ROWS)
    assert found == [*rows[:at], b"0", b"1", *rows[at:]]
    assert not list(options.staging.glob("*.arrow"))


def test_texts_stay_texts_and_a_stream_is_made_if_it_is_not_there(where: str, options: WriteOptions) -> None:
    staged(options, ["one", "zwei", "três"]).send()
    assert records(where) == [b"one", b"zwei", "três".encode()]


def test_a_record_that_is_null_is_refused(options: WriteOptions) -> None:
    with pytest.raises(InvalidInput, match="null"):
        staged(options, [b"a", None]).send()


def test_a_name_belongs_to_one_target(options: WriteOptions, where: str) -> None:
    staged(options, [b"a"]).send()
    other = write_options({"url": where, "queue": "q", "name": "run 1", "staging": str(options.staging)})
    with pytest.raises(Conflict, match="went into the stream 'a/b/c'"):
        Batch(other, "run 1").manifest()


@pytest.mark.parametrize("given", [{}, {"queue": "q", "stream": "s"}])
def test_one_of_queue_and_stream_is_needed(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="one of the options queue and stream") as error:
        write_options({"url": "here", **given})
    assert "staging" in (error.value.hint or "")


def test_a_queue_that_is_smaller_than_a_chunk_makes_it_slower_not_fail(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server, server.client() as client:
        path = client.queue("small", max_size=7)
        url = f"http://127.0.0.1:{server.port}"
        options = write_options({"url": url, "queue": "small", "staging": str(tmp_path / "staging")})
        table = pa.table({"payload": [str(number) for number in range(30)]})
        file, count = stage(table.to_batches(), options.staging)
        batch = Batch(options, "run")
        batch.decide([str(file)], count)
        sending = threading.Thread(target=batch.send)
        sending.start()
        found: list[str] = []
        while len(found) < 30:
            polled = client.post(f"{path}/poll?batch=5&wait_ms=20000").json["messages"]
            found += [b64decode(message["payload"]).decode() for message in polled]
            acked = [{"id": message["id"], "token": message["token"]} for message in polled]
            assert client.post(f"{path}/ack", {"items": acked}).status == 200
        sending.join()
    assert found == [str(number) for number in range(30)]


def test_what_killed_tasks_left_behind_is_removed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_options({"url": str(tmp_path), "stream": "s", "staging": str(tmp_path / "staging")})
    left, _ = stage(pa.table({"data": [b"left"]}).to_batches(), options.staging)
    wanted, rows = stage(pa.table({"data": [b"wanted"]}).to_batches(), options.staging)
    Batch(options, "one").decide([str(wanted)], rows)
    monkeypatch.setattr("penstock.pipeline.staging.STALE_SECONDS", -1)
    file, rows = stage(pa.table({"data": [b"now"]}).to_batches(), options.staging)
    other = Batch(options, "other")
    other.decide([str(file)], rows)
    other.send()
    assert [each.name for each in options.staging.glob("*.arrow")] == [wanted]
    assert left != wanted


def test_a_repeat_is_known_from_an_offset_on_however_long_ago_it_was(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        client.post("/streams", {"name": "s"})
        body = {"records": ["a", "b"]}
        assert client.post("/streams/s/records", body, idempotency_key="k").json["first"] == 0
    with running(tmp_path) as server, server.client() as client:
        assert server.app.streams is not None
        server.app.streams._keys._recall_until = 0.0  # As after a quarter of an hour.
        assert client.post("/streams/s/records?since=0", body, idempotency_key="k").json["first"] == 0
        assert client.post("/streams/s/records?since=1", body, idempotency_key="k2").json["first"] == 2
        assert client.post("/streams/s/records?since=0", body).status == 422
    with closing(open_streams(str(tmp_path / "penstock.db"))) as streams:
        assert streams.show("s").next == 4
