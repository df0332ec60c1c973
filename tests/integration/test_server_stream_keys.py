"""A repeated append with the same idempotency key adds nothing, even after a restart."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.model import Content
from penstock.errors import PenstockError, StoreUnreachable
from penstock.log.append_dedup import tag_of
from penstock.log.model import AppendOutcome, NewRecord, Payload
from penstock.log.streams import FileStreams, streams_beside
from penstock.server.stream_service import StreamService
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, process
from tests.integration.streaming import ARROW, append, arrow, create, data_of


@pytest.fixture
def stream(client: Client, name: str) -> str:
    return create(client, name)


def test_a_repeated_key_returns_the_first_result(client: Client, stream: str) -> None:
    first = client.post(f"{stream}/records", {"records": ["a", "b"]}, idempotency_key="k")
    append(client, stream, "between")
    again = client.post(f"{stream}/records", {"records": ["a", "b"]}, idempotency_key="k")
    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json
    assert append(client, stream, "a", "b", idempotency_key="other")["first"] == 3
    reused = client.post(f"{stream}/records", {"records": ["a"]}, idempotency_key="k")
    assert (reused.status, reused.json["code"]) == (409, "key_reused")
    for bad in ("", "x" * 513, "caf\xe9\x00"):
        with client.__class__(client.host, client.port) as other:
            assert other.post(f"{stream}/records", {"records": ["a"]}, idempotency_key=bad).status in (400, 422)


def test_an_idempotency_key_belongs_to_one_stream(client: Client, stream: str) -> None:
    other = create(client, stream.rpartition("/")[2] + "-other")
    append(client, stream, "x", idempotency_key="k")
    assert client.post(f"{other}/records", {"records": ["x"]}, idempotency_key="k").status == 201
    client.delete(stream)
    create(client, stream.rpartition("/")[2])
    assert client.post(f"{stream}/records", {"records": ["x"]}, idempotency_key="k").status == 201


def test_a_repeated_large_body_is_split_the_same_way(client: Client, stream: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2_500))
    columns = arrow(pa.table({"data": [b"%d" % number for number in range(25_000)]}))
    for body, kind in ((lines, "application/x-ndjson"), (columns, ARROW)):
        first = client.post(f"{stream}/records", body, content_type=kind, idempotency_key=kind)
        again = client.post(f"{stream}/records", body, content_type=kind, idempotency_key=kind)
        assert (first.status, again.status) == (201, 200)
        assert first.json == again.json
    assert client.get(stream).json["next"] == 27_500


def test_a_repeat_that_overtakes_the_first_waits_for_it(client: Client, stream: str) -> None:
    answers: list[Any] = []

    def send() -> None:
        with Client(client.host, client.port) as other:
            answers.append(other.post(f"{stream}/records", {"records": ["once"]}, idempotency_key="k"))

    threads = [threading.Thread(target=send) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert data_of(client, stream) == ["once"]


def test_a_failed_append_can_be_retried_with_its_key(client: Client, name: str) -> None:
    path = f"/streams/{name}"
    assert client.post(f"{path}/records", {"records": ["x"]}, idempotency_key="k").status == 404
    create(client, name)
    assert client.post(f"{path}/records", {"records": ["x"]}, idempotency_key="k").status == 201


def test_a_key_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    records = {"records": ["a", {"b": 1}, {"data": "/w==", "encoding": "base64"}]}
    with process(tmp_path, "--data", "data") as server, server.client() as client:
        path = create(client, "s")
        first = client.post(f"{path}/records", records, idempotency_key="k")
        raw = client.post(f"{path}/records", b"raw", content_type="application/octet-stream", idempotency_key="r")
        append(client, path, "a", idempotency_key="another")
    with process(tmp_path, "--data", "data") as server, server.client() as client:
        again = client.post(f"{path}/records", records, idempotency_key="k")
        assert (again.status, again.json) == (200, first.json)
        also = client.post(f"{path}/records", b"raw", content_type="application/octet-stream", idempotency_key="r")
        assert (also.status, also.json) == (200, raw.json)
        assert append(client, path, "a", idempotency_key="new")["first"] == 5
        assert client.get(path).json["next"] == 6


def test_a_torn_append_is_completed_and_a_similar_append_is_kept(serve: Fresh) -> None:
    server = serve()
    server.stop()
    tag = tag_of("k")
    with closing(FileStreams(streams_beside(server.path))) as streams:
        streams.create("torn")
        streams.create("other")
        streams.append("torn", [NewRecord(b"a", Content.TEXT, tag), NewRecord(b"b", Content.TEXT)])
        streams.append("other", [NewRecord(b"of another key", Content.TEXT, tag)])
    with serve().client() as client:
        rest = client.post("/streams/torn/records", {"records": ["a", "b", "c"]}, idempotency_key="k")
        assert (rest.status, rest.json) == (201, {"first": 0, "last": 2, "records": 3})
        assert client.post("/streams/torn/records", {"records": ["a", "b", "c"]}, idempotency_key="k").status == 200
        assert data_of(client, "/streams/torn") == ["a", "b", "c"]
        assert append(client, "/streams/other", "mine", idempotency_key="k")["first"] == 1


class LossyStreams(FileStreams):
    """Fails like a database whose connection is lost after a commit and stays away longer than any caller waits."""

    lost = False

    def prepare(self, name: str, batches: Sequence[Sequence[Payload]]) -> None:
        """Return None, so that appends run on a thread instead of the event loop."""

    def append_many(self, name: str, batches: Sequence[Sequence[Payload]]) -> list[AppendOutcome | PenstockError]:
        done = super().append_many(name, batches)
        if self.lost:
            raise StoreUnreachable("gone", maybe_done=True)
        return done


@pytest.mark.parametrize("minutes", [0, 60])
def test_a_repeated_append_looks_for_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    streams = LossyStreams(tmp_path)
    streams.create("s")
    service = StreamService(streams)

    async def main() -> None:
        await service.append("s", [b"before"], "other")
        began = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: began + 60 * minutes)
        streams.lost = True
        with pytest.raises(StoreUnreachable):
            await service.append("s", [b"a", b"b"], "k")
        streams.lost = False
        appended, again = await service.append("s", [b"a", b"b"], "k")
        assert (appended.first, appended.last, again) == (1, 2, True)
        assert (await service.append("s", [b"c"], "new"))[0].first == 3
        await service.close()

    asyncio.run(main())
