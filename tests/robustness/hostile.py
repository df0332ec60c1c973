"""Hostile clients are limited, refused or dropped, and the server keeps serving others.

    python tests/robustness/hostile.py --sockets 10000

Each attack runs beside an honest client, whose slowest response is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.integration.serving import Process, process

HEAD = b"POST /queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
PATIENCE = 90.0


@dataclass
class Result:
    attack: str
    outcome: str
    # The honest client's slowest response during the attack.
    slowest_ms: float
    grew_mb: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.attack:<34}{self.outcome:<44}{self.slowest_ms:>8.0f} ms {self.grew_mb:>7.0f} MB "
            f"{self.seconds:>6.1f} s"
        )


class Attacker:
    def __init__(self, server: Process) -> None:
        self._port = server.port
        self._process = psutil.Process(server.process.pid)

    async def attack(self, name: str, act: Callable[[], Awaitable[str]]) -> Result:
        before = self._process.memory_info().rss
        peak = before
        slowest = 0.0
        started = time.monotonic()
        acting = asyncio.ensure_future(act())
        while not acting.done():
            slowest = max(slowest, await self._honest())
            peak = max(peak, self._process.memory_info().rss)
            await asyncio.wait({acting}, timeout=0.02)
        seconds = time.monotonic() - started
        slowest = max(slowest, await self._honest())
        return Result(name, acting.result(), slowest * 1000, (peak - before) / 1e6, seconds)

    async def _honest(self) -> float:
        started = time.monotonic()
        async with self._connection() as (reader, writer):
            body = b'{"payload": 1}'
            writer.write(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
            status = await asyncio.wait_for(reader.readline(), PATIENCE)
            assert status.startswith(b"HTTP/1.1 201"), status
        return time.monotonic() - started

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _send(self, data: bytes) -> str:
        """Send one request; return the status of the response, or how the connection ended."""
        async with self._connection() as (reader, writer):
            writer.write(data)
            return await read_status(reader)

    async def _trickle(self, start: bytes, drop: bytes, count: int = 200) -> str:
        """Open connections that send one byte a second, and wait until all of them are dropped."""

        async def one() -> float:
            async with self._connection() as (reader, writer):
                started = time.monotonic()
                writer.write(start)
                ended = asyncio.ensure_future(reader.read())
                while not ended.done() and time.monotonic() - started < PATIENCE:
                    with contextlib.suppress(ConnectionError):
                        writer.write(drop)
                    await asyncio.wait({ended}, timeout=1)
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(ended, 1)
                return time.monotonic() - started

        lasted = await asyncio.gather(*(one() for _ in range(count)))
        assert max(lasted) < PATIENCE, "not dropped"
        return f"{count} dropped after {max(lasted):.0f} s at most"

    async def slow_head(self) -> str:
        return await self._trickle(HEAD, b"x")

    async def slow_line_ends(self) -> str:
        """Send a request, and then line ends that start no other request."""
        return await self._trickle(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n")

    async def slow_body(self) -> str:
        return await self._trickle(HEAD + b"content-length: 100000\r\n\r\n", b" ")

    async def huge_body(self) -> str:
        return await self._send(HEAD + b"content-length: 1073741824\r\n\r\n")

    async def huge_chunked_body(self) -> str:
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        sent = 0
        async with self._connection() as (reader, writer):
            writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
            status = asyncio.ensure_future(read_status(reader))
            with contextlib.suppress(ConnectionError):
                while sent < 1024 and not writer.transport.is_closing() and not reader.at_eof():
                    writer.write(chunk)
                    await writer.drain()
                    sent += 1
            return f"{await status}, cut off after {sent} of 1024 MiB"

    async def deep_json(self) -> str:
        body = b'{"payload": ' + b"[" * 5_000_000
        return await self._send(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async def nested_json(self) -> str:
        body = b'{"payload": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        return await self._send(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async def wide_json(self) -> str:
        body = b'{"payload": [' + b"1, " * 5_000_000 + b"1]}"
        return await self._send(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async def bad_utf8(self) -> str:
        body = b'{"payload": "' + b"\xff\xfe" * 1_000 + b'"}'
        return await self._send(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async def huge_header(self) -> str:
        return await self._send(HEAD + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n")

    async def many_headers(self) -> str:
        return await self._send(HEAD + b"".join(b"x%d: 1\r\n" % n for n in range(5_000)) + b"\r\n")

    async def endless_head(self) -> str:
        async with self._connection() as (reader, writer):
            writer.write(b"GET /")
            with contextlib.suppress(ConnectionError):
                for _ in range(1_024):
                    writer.write(b"a" * 65_536)
                    await writer.drain()
                    if reader.at_eof() or writer.transport.is_closing():
                        break
            return await read_status(reader)

    async def not_http(self) -> str:
        return await self._send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n")

    async def pipelining(self) -> str:
        count = 500
        async with self._connection() as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * count)
            seen = b""
            while seen.count(b'{"status":"ok"}') < count:
                seen += await asyncio.wait_for(reader.read(65_536), PATIENCE)
        return f"{count} answered in order"

    async def half_closed(self) -> str:
        async def one() -> None:
            async with self._connection() as (reader, writer):
                writer.write(b"POST /queues/idle/poll?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await writer.drain()
                writer.write_eof()
                await asyncio.wait_for(reader.read(), PATIENCE)

        await asyncio.gather(*(one() for _ in range(200)))
        return "200 closed"

    async def no_reader(self) -> str:
        """Request a large response and read nothing."""
        async with self._connection() as (_, writer):
            writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2_000)
            await asyncio.sleep(5)
        return "kept within the buffer"

    async def many_sockets(self, count: int) -> str:
        opened: list[asyncio.StreamWriter] = []
        refused = 0
        try:
            for _ in range(count):
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    opened.append(writer)
                except OSError:
                    refused += 1
            return f"{len(opened)} open at once, {refused} refused"
        finally:
            for writer in opened:
                writer.transport.abort()


async def read_status(reader: asyncio.StreamReader) -> str:
    try:
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
    except ConnectionError:
        return "reset"
    return line.decode().removeprefix("HTTP/1.1 ").strip() or "closed"


QUICK = (
    "huge_body",
    "huge_chunked_body",
    "deep_json",
    "nested_json",
    "wide_json",
    "bad_utf8",
    "huge_header",
    "many_headers",
    "endless_head",
    "not_http",
    "pipelining",
    "half_closed",
    "no_reader",
)
SLOW = ("slow_head", "slow_line_ends", "slow_body")


async def run(server: Process, attacks: tuple[str, ...], sockets: int) -> list[Result]:
    hostile = Attacker(server)
    results = []
    for name in attacks:
        results.append(await hostile.attack(name, getattr(hostile, name)))
    if sockets:
        results.append(await hostile.attack("many_sockets", lambda: hostile.many_sockets(sockets)))
    return results


def prepare(server: Process) -> None:
    with server.client() as client:
        client.queue("q")
        client.queue("idle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=10_000)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets = min(arguments.sockets, hard - 200)
    with tempfile.TemporaryDirectory() as folder, process(Path(folder), "--no-access-log") as server:
        prepare(server)
        for result in asyncio.run(run(server, QUICK + SLOW, sockets)):
            print(result)
        print("exit code", server.terminate())


if __name__ == "__main__":
    main()
