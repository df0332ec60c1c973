"""Base classes of the measured systems and their clients."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any, ClassVar, Protocol

from lib import machine

PAYLOAD_BYTES = 200
LEASE_S = 60
FILL_STEP = 1_000


class Client(Protocol):
    """One concurrent user. Each call returns when it is committed."""

    async def push(self, count: int) -> None: ...

    async def pop(self, count: int) -> list[Any]: ...

    async def ack(self, popped: list[Any]) -> None: ...


class System:
    key: ClassVar[str]
    label: ClassVar[str]
    module: ClassVar[str]
    package: ClassVar[str]
    client: ClassVar[str]
    """The client library and how it is used, for the report."""
    batch_form: ClassVar[str]
    loops: ClassVar[bool] = False
    """True if a batch is popped in a loop of single calls."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec(cls.module) is None:
            return f"{cls.package} is not installed (make bench-postgres installs it)"
        return None

    @classmethod
    def version(cls) -> str:
        return machine.version(cls.package)

    async def prepare(self) -> None:
        """Create the tables and a queue in an empty database."""

    async def connect(self, clients: int) -> list[Any]:
        raise NotImplementedError

    async def close(self) -> None: ...

    async def fill(self, count: int) -> None:
        """Push a backlog of messages; this is not timed."""
        (client,) = await self.connect(1)
        for _ in range(0, count, FILL_STEP):
            await client.push(FILL_STEP)
        await self.close()


class Order:
    """The number of messages that a client still waits for."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = asyncio.Event()


class Orders:
    """Replaces pop and ack for systems whose own workers take and complete the messages.

    A handler returns only when a client wants a message, so that a backlog keeps its size.
    """

    def __init__(self) -> None:
        self._open: asyncio.Queue[Order] = asyncio.Queue()

    async def handle(self) -> None:
        """Wait until a client wants a message; each handler awaits this."""
        order = await self._open.get()
        order.left -= 1
        if not order.left:
            order.done.set()

    async def pop(self, count: int) -> list[Any]:
        order = Order(count)
        self.release(order, count)
        await order.done.wait()
        return [None] * count

    async def ack(self, popped: list[Any]) -> None:
        """Do nothing: the worker completes the job when its handler returns."""

    def release(self, order: Order, count: int) -> None:
        """Allow `count` handlers to return."""
        for _ in range(count):
            self._open.put_nowait(order)


def text(count: int = PAYLOAD_BYTES) -> str:
    return "x" * count
