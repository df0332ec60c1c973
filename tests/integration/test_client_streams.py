"""The SDK's streams behave the same on a file and on a server, sync and async."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import (
    CorruptRecord,
    InvalidInput,
    InvalidName,
    OffsetBeyondEnd,
    OffsetTrimmed,
    PayloadTooLarge,
    PositionMovesBack,
    StoreBusy,
    StreamExists,
    StreamInUse,
    UnknownConsumer,
    UnknownStream,
    WrongType,
)
from penstock.log.streams import streams_beside
from tests.integration.client_support import Sdk, proxy
from tests.integration.serving import Running, process

pytestmark = pytest.mark.timeout(60)


def test_appended_records_are_read_back(sdk: Sdk, url: str, name: str) -> None:
    look_alikes = [{"data": "aGk=", "encoding": "base64"}, {"data": 1, "encoding": "json"}, {"encoding": "x"}]
    look_alikes += [["encoding"], [{"data": 1, "encoding": "json"}], '"encoding"']
    values = [b"\xff", "text", "", b"", None, 1.5, 10**18, ["a", {"b": None}], *look_alikes]

    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            one = await stream.append({"first": True})
            assert (one.first, one.last, one.records) == (0, 0, 1)
            many = await stream.append_many(values)
            assert (many.first, many.last, many.records) == (1, len(values), len(values))
            page = await stream.read()
            assert [record.data for record in page] == [{"first": True}, *values]
            assert [record.offset for record in page] == list(range(len(values) + 1))
            assert page.next == len(values) + 1
            assert [record.data for record in await stream.read(2, 3)] == values[1:4]
            assert await stream.read(page.next) == []

    asyncio.run(main())


def test_streams_are_created_configured_listed_and_dropped(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(f"{name}-a", retention_ms=1_000)
            await client.create_stream(f"{name}-a", retention_ms=1_000)
            await client.create_stream(f"{name}-a", exist_ok=True, retention_bytes=1 << 20)
            kept = (await stream.info()).options
            assert (kept.retention_ms, kept.retention_bytes) == (1_000, 1 << 20), "only the given options change"
            await stream.configure(retention_bytes=None)
            with pytest.raises(StreamExists) as exists:
                await client.create_stream(f"{name}-a")
            assert (exists.value.stream, exists.value.differing) == (f"{name}-a", ["retention_ms"])
            assert (await stream.configure(retention_ms=None, segment_bytes=65_536)).options.segment_bytes == 65_536
            with pytest.raises(InvalidInput):
                await stream.configure(segment_bytes=1)
            await client.create_stream(f"{name}-b")
            assert [info.name for info in await client.streams(prefix=name)] == [f"{name}-a", f"{name}-b"]
            page = await client.streams(prefix=name, limit=1)
            assert [info.name for info in await client.streams(prefix=name, limit=1, after=page.next)] == [f"{name}-b"]
            await stream.create_consumer("c")
            with pytest.raises(StreamInUse) as in_use:
                await stream.drop()
            assert in_use.value.consumers == ["c"]
            await stream.drop(force=True)
            with pytest.raises(UnknownStream) as unknown:
                await stream.info()
            assert unknown.value.stream == f"{name}-a"

    asyncio.run(main())


def test_invalid_calls_are_refused_before_they_change_anything(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name, record_bytes=10)
            for wrong in ((1,), {1: 2}, float("nan"), object()):
                with pytest.raises(WrongType):
                    await stream.append(wrong)
            for wrong in ("text", b"bytes", {"a": 1}, 7):
                with pytest.raises(WrongType):
                    await stream.append_many(wrong)
            with pytest.raises(InvalidInput):
                await stream.append_many([])
            with pytest.raises(PayloadTooLarge):
                await stream.append("x" * 11)
            for call in (
                lambda: stream.read(-1),
                lambda: stream.read(limit=0),
                lambda: stream.read(wait=-1),
                lambda: stream.next("a b"),
                lambda: stream.commit("c", -2),
            ):
                with pytest.raises(InvalidInput):
                    await call()
            with pytest.raises(InvalidName):
                client.stream("a/b")
            assert (await stream.info()).next == 0

    asyncio.run(main())


def test_an_offset_out_of_range_is_refused_with_the_valid_range(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name, segment_bytes=65_536)
            for _ in range(3):
                await stream.append_many(["x" * 30_000] * 2)
            assert (await stream.trim(4)).first == 4
            with pytest.raises(OffsetTrimmed) as trimmed:
                await stream.read(1)
            assert (trimmed.value.offset, trimmed.value.first_offset) == (1, 4)
            with pytest.raises(OffsetBeyondEnd) as beyond:
                await stream.read(9)
            assert (beyond.value.offset, beyond.value.next_offset) == (9, 6)
            assert [record.offset for record in await stream.read()] == [4, 5]

    asyncio.run(main())


def test_a_read_waits_for_new_records(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            assert await stream.read(wait=0.001) == []
            reading = asyncio.ensure_future(wait(stream.read(wait=30)))
            next_one = asyncio.ensure_future(wait(stream.next("c", wait=30)))
            await stream.append("now")
            assert [record.data for record in await reading] == ["now"]
            assert [record.data for record in await next_one] == ["now"]

    asyncio.run(main())


async def wait(call: Any) -> Any:
    return await call


def test_a_consumer_gets_every_record_once_without_failures(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            await stream.append_many(range(25))
            seen = [record.data async for record in stream.consume("c", batch=10, idle=0)]
            assert seen == list(range(25))
            consumer = await stream.consumer("c")
            assert (consumer.offset, consumer.lag) == (24, 0)
            await stream.append("more")
            assert [record.data async for record in stream.consume("c", idle=0)] == ["more"]
            assert [record.data async for record in stream.consume("c", idle=0.01)] == []

    asyncio.run(main())


@pytest.mark.parametrize("commit", ["batch", "record"])
def test_leaving_the_loop_commits_processed_records(sdk: Sdk, url: str, name: str, commit: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            await stream.append_many(range(10))
            records = aiter(stream.consume("c", batch=4, commit=commit))
            for number in range(6):
                assert (await anext(records)).data == number
            await records.aclose()
            # The sixth record was returned, but not processed yet.
            assert (await stream.consumer("c")).offset == 4
            assert [record.data async for record in stream.consume("c", idle=0)] == [5, 6, 7, 8, 9]

    asyncio.run(main())


def test_positions_can_be_committed_manually(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            await stream.append_many(range(6))
            async for record in stream.consume("c", commit="manual", batch=2, idle=0):
                if record.data == 3:
                    assert (await stream.commit("c", record.offset)).lag == 2
            assert [record.data for record in await stream.next("c")] == [4, 5]
            with pytest.raises(PositionMovesBack) as back:
                await stream.commit("c", 1)
            assert (back.value.consumer, back.value.offset, back.value.committed) == ("c", 1, 3)
            assert (await stream.commit("c", 1, force=True)).lag == 4
            made = await stream.create_consumer()
            assert {each.name for each in await stream.consumers()} == {"c", made.name}
            await stream.forget("c")
            with pytest.raises(UnknownConsumer) as unknown:
                await stream.consumer("c")
            assert unknown.value.consumer == "c"
            with pytest.raises(InvalidInput):
                await anext(aiter(stream.consume("c", commit="never")))

    asyncio.run(main())


def test_arrow_tables_can_be_appended_and_read(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            table = pa.table({"data": [b"%d" % number for number in range(30_000)]})
            done = await stream.append_arrow(table)
            assert (done.first, done.last, done.records) == (0, 29_999, 30_000)
            await stream.append_arrow(table.slice(0, 5).to_batches())
            batches = [batch async for batch in stream.read_arrow()]
            found = pa.Table.from_batches(batches)
            assert found["offset"].to_pylist() == list(range(30_005))
            assert found["data"].to_pylist()[29_999:30_001] == [b"29999", b"0"]
            part = pa.Table.from_batches([batch async for batch in stream.read_arrow(10, 20)])
            assert part["offset"].to_pylist() == list(range(10, 20))
            assert [batch async for batch in stream.read_arrow(30_005)] == []
            with pytest.raises(OffsetBeyondEnd):
                assert [batch async for batch in stream.read_arrow(30_006)]
            for wrong in ("text", {"data": 1}, 7):
                with pytest.raises(WrongType):
                    await stream.append_arrow(wrong)
            for bad in (pa.table({"data": [1]}), pa.table({"data": pa.array([], pa.binary())})):
                with pytest.raises(InvalidInput):
                    await stream.append_arrow(bad)

    asyncio.run(main())


def test_concurrent_appends_get_distinct_offsets(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name, record_bytes=100)
            calls = [wait(stream.append("x" * 101 if number == 50 else number)) for number in range(100)]
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(done.pop(50), PayloadTooLarge)
            page = await stream.read()
            values = [number for number in range(100) if number != 50]
            assert [page[each.first].data for each in done] == values
            assert len(page) == 99

    asyncio.run(main())


@pytest.mark.parametrize("url", ["sqlite", "http"], indirect=True)
def test_damage_is_reported_with_its_position(sdk: Sdk, url: str, name: str, tmp_path: Path, server: Running) -> None:
    database = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else server.path

    async def main() -> None:
        async with sdk.connect(url) as client:
            stream = await client.create_stream(name)
            await stream.append_many(["before", "secret", "after"])
            [log] = (streams_beside(database) / "flat" / name).glob("*.log")
            content = bytearray(log.read_bytes())
            content[content.index(b"secret")] ^= 1
            log.write_bytes(content)
            with pytest.raises(CorruptRecord) as corrupt:
                await stream.read(1)
            assert (corrupt.value.offset, corrupt.value.segment, corrupt.value.position) == (1, log.name, 94)

    asyncio.run(main())


# Over a network


def test_an_append_with_a_lost_response_adds_one_record(sdk: Sdk, server: Running, name: str) -> None:
    async def main() -> None:
        with proxy(server.port) as between:
            async with sdk.connect(between.url) as client:
                stream = await client.create_stream(name)
                for call in (lambda: stream.append("once"), lambda: stream.append_arrow(pa.table({"data": ["once"]}))):
                    between.lose_answer("/records")
                    assert (await call()).records == 1
                assert [record.data for record in await stream.read()] == ["once", "once"]
                assert between.count("POST") == 5

    asyncio.run(main())


def test_an_append_to_a_server_killed_before_its_response_adds_one_record(sdk: Sdk, tmp_path: Path) -> None:
    async def main() -> None:
        first = process(tmp_path, "--data", "data")
        before = first.__enter__()
        port = str(before.port)
        with proxy(before.port) as between:
            async with sdk.connect(between.url) as client:
                stream = await client.create_stream("s")
                await stream.append("before")
                between.lose_answer("/records")
                appending = asyncio.ensure_future(wait(stream.append("once")))
                while between.count("/records") < 2:
                    await asyncio.sleep(0)
                first.__exit__(None, None, None)
                with process(tmp_path, "--data", "data", "--port", port):
                    done = await appending
                    page = await stream.read()
                    assert [record.data for record in page] == ["before", "once"]
                    assert done.first == 1

    asyncio.run(main())


# Over files


def test_one_process_appends_at_a_time_and_all_can_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with penstock.connect(url) as one, penstock.connect(url, retry_for=0) as other:
        mine, theirs = one.create_stream("s"), other.stream("s")
        mine.append("x")
        assert theirs.read()[0].data == "x"
        with pytest.raises(StoreBusy):
            theirs.append("y")
    with penstock.connect(url) as after:
        assert after.stream("s").append("y").first == 1


def test_a_child_does_not_write_for_its_parent(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}/tasks.db", retry_for=0) as client:
        stream = client.create_stream("s")
        stream.append("parent")
        child = os.fork()
        if not child:
            try:
                refused = False
                try:
                    stream.append("child")
                except StoreBusy:
                    refused = True
                os._exit(0 if refused and stream.read()[0].data == "parent" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert stream.append("parent again").first == 1


def test_a_store_with_only_queues_has_no_streams_folder(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as client:
        client.create_queue("q").push(1)
        assert not streams_beside(tmp_path / "tasks.db").exists()
    with penstock.connect("sqlite:///:memory:") as client, pytest.raises(InvalidInput):
        client.stream("s").append(1)
