"""What the cells need of every measured system: make it ready in a fresh database, and connect clients to it."""

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
    """How it is called."""
    batch_form: ClassVar[str]
    loops: ClassVar[bool] = False
    """Whether a batch is taken one by one."""

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
        """Tables and a queue, in a database that has none."""

    async def connect(self, clients: int) -> list[Any]:
        raise NotImplementedError

    async def close(self) -> None: ...

    async def fill(self, count: int) -> None:
        """Messages that wait, off the clock."""
        (client,) = await self.connect(1)
        for _ in range(0, count, FILL_STEP):
            await client.push(FILL_STEP)
        await self.close()


class Order:
    """How many messages a client still waits for."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = asyncio.Event()


class Orders:
    """What stands for pop and ack where a system's own workers take the messages and complete them.

    A handler returns only when a client wants a message, so that a backlog stays as long as it is.
    """

    def __init__(self) -> None:
        self._open: asyncio.Queue[Order] = asyncio.Queue()

    async def handle(self) -> None:
        """To be awaited by the handler of a message."""
        order = await self._open.get()
        order.left -= 1
        if not order.left:
            order.done.set()

    async def pop(self, count: int) -> list[Any]:
        order = Order(count)
        self.let_go(order, count)
        await order.done.wait()
        return [None] * count

    async def ack(self, popped: list[Any]) -> None:
        """The worker does it when the handler returns."""

    def let_go(self, order: Order, count: int) -> None:
        """Let `count` handlers return."""
        for _ in range(count):
            self._open.put_nowait(order)


def text(count: int = PAYLOAD_BYTES) -> str:
    return "x" * count
