"""The list of those who work, as far as both stores keep it alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.model import Presence, WorkerInfo

WORKERS_MAX = 10_000
"""Listed at once; whoever comes beyond that is not."""
STALE_AT_ONCE = 1_000
LEASES_MET = 10_000
"""Looked at to learn whether one who is silent still holds messages."""
DOUBT_MS = 3_600_000
"""How long one who is silent stays listed where there are too many leases to tell."""
LEASES_SHOWN = 100_000
"""Counted to tell who holds what."""

Key = tuple[str, str]
_queues = msgspec.json.Decoder(list[str])


def each_once(present: Iterable[Presence]) -> list[Presence]:
    """In the order of their keys."""
    by_key = {(each.kind, _text(each.name)): each for each in present if each.name}
    return [msgspec.structs.replace(by_key[key], name=key[1]) for key in sorted(by_key)]


def admitted(present: Sequence[Presence], known: Iterable[Key], listed: int) -> list[Presence]:
    """Those who are listed, and as many new ones as there is room for."""
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


def silent(stale: Iterable[tuple[str, str, int]], holders: dict[str | None, int], now: int) -> list[Key]:
    """Of those who gave no sign in time: who holds no messages either. A consumer may be busy with what it has."""
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
    """Where a page begins, from the cursor that the one before ended with."""
    kind, _, name = _text(after or "").partition(":")
    return kind, name


def cursor(last: WorkerInfo) -> str:
    return f"{last.kind}:{last.name}"


def _text(name: str) -> str:
    """As every store can hold it."""
    return name.replace("\0", "�")
