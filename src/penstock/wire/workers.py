"""JSON schemas of the list of workers. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.core.model import WorkerInfo


class WorkersQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: Annotated[str, Meta(max_length=300)] | None = None


class HeldView(Struct):
    queue: str
    """The queue, or the scope it leases from, with a trailing slash."""
    leases: int


class WorkerView(Struct, kw_only=True):
    kind: Literal["server", "consumer"]
    name: str
    host: str | None
    pid: int | None
    version: str | None
    server: str | None
    """The server through which a consumer leases; null if it opens the store directly."""
    started_at: int
    seen_at: int
    """Time of the last heartbeat."""
    stale_at: int
    """Time at which it leaves the list without another heartbeat."""
    leases: int
    """Messages it has leased now."""
    queues: list[HeldView]


class WorkerPage(Struct):
    workers: list[WorkerView]
    next: str | None = None


def worker_view(worker: WorkerInfo) -> WorkerView:
    return WorkerView(
        kind=worker.kind,
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        server=worker.server,
        started_at=worker.started_at,
        seen_at=worker.seen_at,
        stale_at=worker.stale_at,
        leases=worker.leases,
        queues=[HeldView(queue, leases) for queue, leases in sorted(worker.queues.items())],
    )
