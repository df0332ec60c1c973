"""Base classes of the measured servers, their clients and their workers."""

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
    """One concurrent user of a queue. Its counters include each message once it is durable, or acked."""

    def __init__(self) -> None:
        self.pushed = 0
        self.acked = 0

    @abstractmethod
    async def push(self, batch: list[str]) -> None: ...

    @abstractmethod
    async def pop(self, count: int) -> Any:
        """Return up to `count` messages in the form that `ack` takes, or something falsy if there are none."""

    @abstractmethod
    async def ack(self, popped: Any) -> None: ...

    async def release(self) -> None:  # noqa: B027 (only a client with a prefetch holds such messages)
        """Return messages that were delivered but not popped."""

    @abstractmethod
    async def close(self) -> None: ...


class Worker(ABC):
    """A worker with its own connection that handles messages one by one."""

    def __init__(self) -> None:
        self.acked = 0
        self.stopping = False

    @abstractmethod
    async def run(self) -> None:
        """Handle messages until stopped or cancelled."""

    def stop(self) -> None:
        self.stopping = True

    def count(self) -> int:
        """Return the number of messages acked so far."""
        return self.acked

    @abstractmethod
    async def close(self) -> None: ...


def handle(payload: Any) -> None:
    """Handle a message in every worker loop, by checking only that it has a payload."""
    if len(payload) == 0:
        raise ValueError("a message has no payload")


class Peer(ABC):
    key: ClassVar[str]
    label: ClassVar[str]
    program: ClassVar[str]
    # The command that installs the program, shown if the system is skipped.
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
        """Return why the system cannot be measured here, or None."""
        if cls.executable() is None:
            return f"{cls.program} is not installed ({cls.source})"
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"the Python client {cls.library} is not installed (make bench-server installs it)"
        return None

    @classmethod
    def executable(cls) -> str | None:
        """Return the program from a package in this environment, or else that of the system."""
        return shutil.which(cls.program, path=os.pathsep.join([SCRIPTS, os.environ.get("PATH", os.defpath)]))

    @abstractmethod
    async def launch(self) -> None:
        """Start the server in the empty `self.folder`, and return when it responds."""

    @abstractmethod
    async def create(self, queue: str) -> None: ...

    @abstractmethod
    async def connect(self, queue: str, clients: int) -> list[Client]: ...

    async def hire(self, queue: str, count: int) -> list[Worker]:
        """Connect workers, which start when they are run."""
        raise NotImplementedError

    async def drop(self, queue: str) -> None:  # noqa: B027 (most servers are restarted instead)
        """Remove the queue if the server keeps running; this is not timed."""

    def version(self) -> str:
        return "unknown"

    async def fresh(self) -> None:
        """Start an empty server in a new folder, unless a start takes many seconds and the server keeps running."""
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
        """Wait for the port; if the server ends first, raise the last line of its log."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError as problem:
                for child in self.children:
                    child.check()
                if asyncio.get_running_loop().time() > deadline:
                    raise RuntimeError(f"{self.label} does not respond on port {port}") from problem
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
    """Close all clients, ignoring errors: a client that was interrupted during a call may fail to close."""
    closing = [asyncio.create_task(client.close()) for client in clients]
    if closing:
        _, late = await asyncio.wait(closing, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
