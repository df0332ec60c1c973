"""A reverse proxy that strips a path prefix."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator

from tests.tasks import end


@contextlib.contextmanager
def below(prefix: str, port: int) -> Iterator[int]:
    """Yield a port that forwards all requests below the prefix to the server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    starting = asyncio.start_server(lambda *streams: _serve(prefix.encode(), port, *streams), "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(prefix: bytes, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A browser also opens connections that it never uses, so this task may be cancelled while it waits for a request.
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        async with _closed(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(prefix + b"/"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            # Closing after each request means that only the first head has to be parsed.
            rest = rest.replace(b"onnection: keep-alive", b"onnection: close")
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)
            async with _closed(onward_writer):
                onward_writer.write(b" ".join([method, path.removeprefix(prefix), rest]))
                await _first_of(_pipe(reader, onward_writer), _pipe(onward_reader, writer))


@contextlib.asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _first_of(*pipes: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.create_task(pipe) for pipe in pipes]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
