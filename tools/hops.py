"""Counts the Python calls between an API and the SQL statement that writes a message: `python -m tools.hops`.

A hop is a frame of a function in the `penstock` package, counted at the first statement that writes the message of a
warmed-up push. The first hop is the entry: for `POST /queues/{queue}/messages` the function that serves the requests
of a connection, or else `LiteQueue.put`. The last is the function that calls sqlite3 or libpq.

In the server the push hands its command to the committer, whose task runs the statements, on PostgreSQL in a thread.
There the hops are those of the request from the entry to the call that hands over, plus those of the committer's task,
plus those of its thread. Frames of asyncio and the standard library do not count: they are the same for every path.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import penstock
from penstock.core.commands import Push
from penstock.group_commit.tasks import BatchWriter, Committer
from penstock.lite import LiteQueue
from penstock.postgres.pipeline import PipelinedConnection
from tests.integration.serving import running
from tests.postgres import Cluster

PACKAGE = str(Path(penstock.__file__).parent)
# The maximum number of hops of each path.
GOALS = {"LiteQueue.put": 9, "HTTP push on SQLite": 14, "HTTP push on PostgreSQL": 16}

Hops = list[str]


def hops_here() -> Hops:
    """Return the package's frames on the stack, from the entry to the innermost."""
    found: Hops = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            found.append(f"{code.co_filename[len(PACKAGE) + 1 :]}: {code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


class Recorder:
    """Records the hops of the push in progress: up to each hand-over to another task, and up to the write."""

    def __init__(self) -> None:
        self.handed: list[Hops] = []
        self.hops: list[Hops] | None = None

    def executes(self, sql: str) -> None:
        if "INSERT INTO" in sql and ("penstock_message " in sql or ".message " in sql) and self.hops is None:
            self.hops = [*self.handed, hops_here()]

    def start(self) -> None:
        self.handed, self.hops = [], None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Report the statements of new connections, and the hand-overs of pushes, to the recorder."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *params: Any) -> sqlite3.Cursor:
            recorder.executes(sql)
            return super().execute(sql, *params)

        def executemany(self, sql: str, params: Any) -> sqlite3.Cursor:
            recorder.executes(sql)
            return super().executemany(sql, params)

    class Libpq:
        """Wraps a libpq connection and records its prepared statements."""

        def __init__(self, pq: Any) -> None:
            self._pq = pq
            self._prepared: dict[bytes, str] = {}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pq, name)

        def send_prepare(self, name: bytes, sql: bytes) -> None:
            self._prepared[name] = sql.decode()
            self._pq.send_prepare(name, sql)

        def send_query_prepared(self, name: bytes, *rest: Any) -> None:
            recorder.executes(self._prepared[name])
            self._pq.send_query_prepared(name, *rest)

    def init(self: PipelinedConnection, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._pq = Libpq(self._pq)  # type: ignore[assignment]

    def enqueue(self: Committer, command: Any, future: Any) -> None:
        if isinstance(command, Push):
            recorder.handed.append([*hops_here(), "group_commit/tasks.py: Committer._enqueue"])
        add(self, command, future)

    def hand_to_thread(self: BatchWriter, call: Callable[[], Any]) -> Any:
        if recorder.handed:
            recorder.handed.append([*hops_here(), "group_commit/tasks.py: BatchWriter.run"])
        return run(self, call)

    begin, add, run = PipelinedConnection.__init__, Committer._enqueue, BatchWriter.run
    with ExitStack() as stack:
        stack.enter_context(patch.object(PipelinedConnection, "__init__", init))
        stack.enter_context(patch.object(Committer, "_enqueue", enqueue))
        stack.enter_context(patch.object(BatchWriter, "run", hand_to_thread))
        stack.enter_context(patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=Connection)))
        yield


def push_lite(folder: Path, recorder: Recorder) -> None:
    with LiteQueue(folder / "lite.db") as queue:
        for _ in range(5):
            recorder.start()
            queue.put(b"x")


def push_server(folder: Path, recorder: Recorder, **settings: Any) -> None:
    with running(folder, **settings) as server, server.client() as client:
        client.post("/queues", {"name": "q"})
        for _ in range(5):
            recorder.start()
            client.post("/queues/q/messages", {"payload": "x"})


def measure() -> dict[str, list[Hops]]:
    found: dict[str, list[Hops]] = {}
    database = Cluster()
    paths: dict[str, Callable[[Path, Recorder], None]] = {
        "LiteQueue.put": push_lite,
        "HTTP push on SQLite": push_server,
        "HTTP push on PostgreSQL": lambda folder, recorder: push_server(folder, recorder, store=database.url),
    }
    try:
        for name, push in paths.items():
            recorder = Recorder()
            with tempfile.TemporaryDirectory() as folder, recording(recorder):
                push(Path(folder), recorder)
            assert recorder.hops is not None, f"{name}: no statement wrote the message"
            found[name] = recorder.hops
    finally:
        database.remove()
    return found


def main() -> int:
    too_many = 0
    for name, stacks in measure().items():
        count = sum(len(stack) for stack in stacks)
        too_many += count > GOALS[name]
        print(f"{name}: {count} hops (goal: at most {GOALS[name]})")
        for stack in stacks:
            print("  " + "\n  ".join(stack), end="\n\n")
    return min(too_many, 1)


if __name__ == "__main__":
    sys.exit(main())
