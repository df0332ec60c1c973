"""A proxy that takes a path prefix off, as one in front of several servers does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def below(prefix: str, port: int) -> Iterator[int]:
    """The port on which everything below the prefix leads to that server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    starting = asyncio.start_server(
        lambda reader, writer: _serve(prefix.encode(), port, reader, writer), "127.0.0.1", 0
    )
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(_end, loop)
        thread.join()
        loop.close()


def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: loop.stop())


async def _serve(prefix: bytes, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, rest = head.split(b" ", 2)
        if not path.startswith(prefix + b"/"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            # One request a connection, so that only heads need reading.
            rest = rest.replace(b"onnection: keep-alive", b"onnection: close")
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)
            onward_writer.write(b" ".join([method, path.removeprefix(prefix), rest]))
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pipe(reader, onward_writer)),
                    asyncio.ensure_future(_pipe(onward_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            onward_writer.close()
    writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
