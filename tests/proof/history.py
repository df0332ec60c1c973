"""The history of a run: requests, responses and faults in one file that any checker can read."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from tests.crash.workers import now_ms

# The effect of a call: ok = done, no = certainly not done, maybe = unknown.
Outcome = Literal["ok", "no", "maybe"]
# The guarantee of a place: leases; leases in push order; ordered records; at-most-once delivery.
Kind = Literal["queue", "fifo", "stream", "inbox"]


class Delivered(Struct, omit_defaults=True):
    """A delivered message, or a stream's record with its offset as the id."""

    id: int | str
    payload: str
    token: str = ""
    attempts: int = 1


class Op(Struct, omit_defaults=True):
    """A call of a client."""

    client: str
    verb: Literal["push", "lease", "ack", "nack", "append", "read", "take"]
    place: str
    began: int
    ended: int = 0
    outcome: Outcome = "maybe"
    payloads: list[str] = []
    """The payloads that were pushed or appended."""
    ids: list[int | str] = []
    """The ids or offsets that were pushed, appended or settled."""
    tokens: list[str] = []
    """The lease tokens of the settled messages."""
    stale: list[int | str] = []
    """The settled ids that the server refused because their lease had expired."""
    delivered: list[Delivered] = []
    limit: int = 0
    """The requested batch size."""
    error: str = ""


class Fault(Struct, omit_defaults=True):
    kind: str
    began: int
    ended: int = 0
    loses_leases: bool = False
    """True if the fault may lose recent leases, which are not fsynced."""
    ahead_s: int | None = None
    """How far the servers' clocks are ahead of the real time from then on."""


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
    """Collects a history from many threads."""

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

    def fault(self, kind: str, *, loses_leases: bool = False, ahead_s: int | None = None) -> Fault:
        fault = Fault(kind, now_ms(), 0, loses_leases, ahead_s)
        with self.lock:
            self.history.faults.append(fault)
        return fault
