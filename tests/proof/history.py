"""The history of a run: requests, answers and faults in one file, for any checker."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from tests.crash.workers import now_ms

Outcome = Literal["ok", "no", "maybe"]
"""Of a call: done; certainly not done; or nobody knows."""
Kind = Literal["queue", "fifo", "stream", "inbox"]
"""What is promised of a place: leases; leases in the order of the pushes; an order of records; at most once."""


class Delivered(Struct, omit_defaults=True):
    """A message or, of a stream, a record at its offset."""

    id: int | str
    payload: str
    token: str = ""
    attempts: int = 1


class Op(Struct, omit_defaults=True):
    """One call of one client."""

    client: str
    verb: Literal["push", "lease", "ack", "nack", "append", "read", "take"]
    place: str
    began: int
    ended: int = 0
    outcome: Outcome = "maybe"
    payloads: list[str] = []
    """Pushed or appended."""
    ids: list[int | str] = []
    """Of what was pushed, appended or settled."""
    tokens: list[str] = []
    """Of what was settled."""
    stale: list[int | str] = []
    """Of those settled: whose lease was said to have passed."""
    delivered: list[Delivered] = []
    limit: int = 0
    """How many were asked for."""
    error: str = ""


class Fault(Struct, omit_defaults=True):
    kind: str
    began: int
    ended: int = 0
    forgets: bool = False
    """A lease that was given out just before may be forgotten: leases do not wait for the disk."""
    ahead_s: int | None = None
    """How far the servers' clocks are ahead of ours from then on."""


class History(Struct):
    store: str
    seed: int
    lease_ms: int
    places: dict[str, Kind]
    ops: list[Op] = []
    faults: list[Fault] = []

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


def load(path: Path) -> History:
    return msgspec.json.decode(path.read_bytes(), type=History)


class Recorder(Struct):
    """A history that many threads write."""

    history: History
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, op: Op) -> Op:
        op.began = now_ms()
        with self.lock:
            self.history.ops.append(op)
        return op

    def done(self, op: Op, *, ids: Iterable[int | str] = (), delivered: Iterable[Delivered] = ()) -> None:
        op.ended = now_ms()
        op.outcome = "ok"
        op.ids = op.ids or list(ids)
        op.delivered = list(delivered)

    def failed(self, op: Op, error: Exception, *, maybe_done: bool) -> None:
        op.ended = now_ms()
        op.outcome = "maybe" if maybe_done else "no"
        op.error = f"{type(error).__name__}: {error}"[:200]

    def fault(self, kind: str, *, forgets: bool = False, ahead_s: int | None = None) -> Fault:
        fault = Fault(kind, now_ms(), 0, forgets, ahead_s)
        with self.lock:
            self.history.faults.append(fault)
        return fault
