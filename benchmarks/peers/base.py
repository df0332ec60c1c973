"""What the load needs of every measured server: start it empty, make a queue, connect a client, end it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from .process import Child

SCRIPTS = str(Path(sys.executable).parent)
READY_S = 60.0
CLOSE_S = 5.0


class Client(ABC):
    """One concurrent user of one queue. The counters move with each message that is safe, or acked."""

    def __init__(self) -> None:
        self.pushed = 0
        self.acked = 0

    @abstractmethod
    async def push(self, batch: list[str]) -> None: ...

    @abstractmethod
    async def pop(self, count: int) -> Any:
        """Up to `count` messages, in whatever form `ack` takes; falsy when there was none."""

    @abstractmethod
    async def ack(self, popped: Any) -> None: ...

    async def release(self) -> None:  # noqa: B027 (only a client that is sent messages unasked holds any)
        """Give back what was delivered and not popped."""

    @abstractmethod
    async def close(self) -> None: ...


class Worker(ABC):
    """One worker with a connection of its own, which handles messages one by one."""

    def __init__(self) -> None:
        self.acked = 0
        self.stopping = False

    @abstractmethod
    async def run(self) -> None:
        """Handle messages until stopped or cancelled."""

    def stop(self) -> None:
        self.stopping = True

    def count(self) -> int:
        """Messages acked so far."""
        return self.acked

    @abstractmethod
    async def close(self) -> None: ...


def handle(payload: Any) -> None:
    """The handler of every worker loop: it only looks at the payload."""
    if len(payload) == 0:
        raise ValueError("a message has no payload")


class Peer(ABC):
    key: ClassVar[str]
    label: ClassVar[str]
    program: ClassVar[str]
    # What installs the program, for the reader of a skipped system.
    source: ClassVar[str | None] = None
    library: ClassVar[str]
    module: ClassVar[str | None] = None
    durability: ClassVar[str]
    # How a batch is pushed, popped and acked; None if only its worker loop is measured.
    batch_form: ClassVar[str | None]
    # How a worker handles messages one by one; None if there is no worker loop to measure.
    worker_form: ClassVar[str | None] = None
    loops: ClassVar[bool] = False
    confirms_acks: ClassVar[bool] = True
    keeps_running: ClassVar[bool] = False

    def __init__(self, root: Path, cores: set[int] | None) -> None:
        self.root, self.cores = root, cores
        self.folder = root
        self.children: list[Child] = []

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured here, or None."""
        if cls.executable() is None:
            return f"{cls.program} is not installed ({cls.source})"
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"the Python client {cls.library} is not installed (make bench-server installs it)"
        return None

    @classmethod
    def executable(cls) -> str | None:
        """The program of a package in this environment, or else the system's."""
        return shutil.which(cls.program, path=os.pathsep.join([SCRIPTS, os.environ.get("PATH", os.defpath)]))

    @abstractmethod
    async def launch(self) -> None:
        """Start the server in `self.folder`, which is empty, and return when it answers."""

    @abstractmethod
    async def create(self, queue: str) -> None: ...

    @abstractmethod
    async def connect(self, queue: str, clients: int) -> list[Client]: ...

    async def hire(self, queue: str, count: int) -> list[Worker]:
        """Connect workers; they begin when they are run."""
        raise NotImplementedError

    async def drop(self, queue: str) -> None:  # noqa: B027 (most are started anew instead)
        """Remove the queue, off the clock; only where the server keeps running."""

    def version(self) -> str:
        return "unknown"

    async def fresh(self) -> None:
        """An empty server: a new process in a new folder, unless starting one takes many seconds."""
        if self.children and self.keeps_running:
            return
        self.stop()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.key}-", dir=self.root))
        await self.launch()

    def start(self, command: list[str], env: dict[str, str] | None = None) -> Child:
        child = Child(command, self.folder, self.cores, env)
        self.children.append(child)
        return child

    async def until_open(self, port: int) -> None:
        """Wait for the port; a server that ends first says why in its log."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError as problem:
                for child in self.children:
                    child.check()
                if asyncio.get_running_loop().time() > deadline:
                    raise RuntimeError(f"{self.label} does not answer on port {port}") from problem
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    def stop(self) -> None:
        for child in reversed(self.children):
            child.stop()
        self.children.clear()
        if self.folder != self.root:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = self.root

    def cpu_s(self) -> float:
        return sum(child.cpu_s() for child in self.children)

    def rss_bytes(self) -> int:
        return sum(child.rss_bytes() for child in self.children)


async def close_all(clients: Sequence[Client | Worker]) -> None:
    """A client that was interrupted in the middle of a call may fail to say good-bye: that is no finding."""
    closing = [asyncio.create_task(client.close()) for client in clients]
    if closing:
        _, late = await asyncio.wait(closing, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
