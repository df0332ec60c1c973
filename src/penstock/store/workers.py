"""Worker list: the code that both stores share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.model import Presence, WorkerInfo

# Workers listed at once; further ones are not listed.
WORKERS_MAX = 10_000
STALE_AT_ONCE = 1_000
# Leases read to find out whether a silent worker still holds messages.
LEASES_MET = 10_000
# How long a silent worker stays listed if there are too many leases to tell.
DOUBT_MS = 3_600_000
# Leases counted to show how many messages each worker holds.
LEASES_SHOWN = 100_000

Key = tuple[str, str]
_queues = msgspec.json.Decoder(list[str])


def each_once(present: Iterable[Presence]) -> list[Presence]:
    """Return one entry per worker, sorted by key."""
    by_key = {(each.kind, _text(each.name)): each for each in present if each.name}
    return [msgspec.structs.replace(by_key[key], name=key[1]) for key in sorted(by_key)]


def admitted(present: Sequence[Presence], known: Iterable[Key], listed: int) -> list[Presence]:
    """Return the workers already listed, and as many new ones as the limit allows."""
    known = frozenset(known)
    room = max(0, WORKERS_MAX - listed)
    found = []
    for each in present:
        if (each.kind, each.name) not in known:
            if not room:
                continue
            room -= 1
        found.append(each)
    return found


def silent_workers(stale: Iterable[tuple[str, str, int]], holders: dict[str | None, int], now: int) -> list[Key]:
    """Return the workers with missed heartbeats that hold no messages. A consumer that holds some may be busy."""
    cut = sum(holders.values()) >= LEASES_MET
    return [
        (kind, name)
        for kind, name, stale_at in stale
        if kind == "server" or not (name in holders or (cut and stale_at >= now - DOUBT_MS))
    ]


def queues_text(each: Presence) -> str:
    return msgspec.json.encode([_text(name) for name in each.queues]).decode()


def shown(rows: Iterable[Sequence[Any]], held: Iterable[tuple[str, str, int]]) -> Iterator[WorkerInfo]:
    of_worker: dict[str, dict[str, int]] = {}
    for name, queue, count in held:
        of_worker.setdefault(name, {})[queue] = count
    for kind, name, host, pid, version, server, started_at, seen_at, stale_at, queues in rows:
        holds = of_worker.get(name, {})
        yield WorkerInfo(
            kind=kind,
            name=name,
            host=host,
            pid=pid,
            version=version,
            server=server,
            started_at=started_at,
            seen_at=seen_at,
            stale_at=stale_at,
            leases=sum(holds.values()),
            queues=dict.fromkeys(_queues.decode(queues), 0) | holds,
        )


def after_key(after: str | None) -> Key:
    """Return the key after which a page begins, from the cursor of the previous page."""
    kind, _, name = _text(after or "").partition(":")
    return kind, name


def cursor(last: WorkerInfo) -> str:
    return f"{last.kind}:{last.name}"


def _text(name: str) -> str:
    """Replace NUL, which PostgreSQL cannot store."""
    return name.replace("\0", "�")
