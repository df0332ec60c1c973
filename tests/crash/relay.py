"""A TCP relay that can stall, slow down and cut its connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.tasks import end

SOCKET = ".s.PGSQL.5432"
CHUNK = 1 << 16
# The SO_LINGER value that makes `close` send a RST.
RESET = struct.pack("ii", 1, 0)


class Relay:
    """Forwards connections from a local port to a server."""

    def __init__(self, server: Path | int) -> None:
        """Forward to a local port, or to the Unix socket in a PostgreSQL folder."""
        self._server = server
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self._lines: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self.port = self._do(self._listen())

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> int:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._listener.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._lines.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await self._connect()
            self._lines.add(far_writer)
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
            self._lines.discard(far_writer)
        self._lines.discard(writer)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, int):
            return await asyncio.open_connection("127.0.0.1", self._server)
        return await asyncio.open_unix_connection(str(self._server / SOCKET))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                # A cut also loses the data that is held here.
                await self._flowing.wait()
                await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    def hold(self) -> None:
        """Stop forwarding in both directions, without closing any connection."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def slow(self, delay_s: float) -> None:
        """Delay everything by this time in each direction."""
        self._delay_s = delay_s

    def cut(self) -> None:
        """Reset all connections, drop the data that is held, and refuse new connections until `restore`."""
        self._do(self._cut())

    async def _cut(self) -> None:
        self._refusing = True
        for writer in self._lines:
            line = writer.get_extra_info("socket")
            # A peer may have closed its connection already.
            if line.family != socket.AF_UNIX and line.fileno() >= 0:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        self._lines.clear()

    def restore(self) -> None:
        self._do(self._listen_again())

    async def _listen_again(self) -> None:
        self._refusing = False
        self._delay_s = 0.0
        self._flowing.set()

    def close(self) -> None:
        self.cut()
        self._do(end(self._listener))  # This also ends connections that `hold` had stopped.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
