"""What a transaction knows of each queue: options, counters and bounds, cached while no one else writes the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter, ne
from typing import Any

import msgspec

from penstock.identity import ID_BITS
from penstock.model import QueueInfo, QueueOptions, Totals
from penstock.store.migrate import load_sql

SQL = load_sql("penstock.store.sqlite", "counter")
LOAD, LAST_ID, SET_LAST_ID = SQL["load"], SQL["last_id"], SQL["set_last_id"]
END_MINUTE = SQL["end_minute"]

GAUGES = ("ready", "scheduled", "leased", "dead", "archived")
TOTALS = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")
KEPT = (*GAUGES, *(f"n_{name}" for name in TOTALS), "cursor", "newest_at", "minute")
_kept = attrgetter(*KEPT)

NEVER = 1 << 62


@lru_cache(maxsize=4096)
def decode_options(text: str) -> QueueOptions:
    return msgspec.json.decode(text, type=QueueOptions)


def encode_options(options: QueueOptions) -> str:
    return msgspec.json.encode(options).decode()


@lru_cache(maxsize=4096)
def _statement(changed: tuple[bool, ...]) -> tuple[str, Callable[[Any], tuple[int, ...]]]:
    """An update of only what changed, and what picks the values for it."""
    columns = [name for name, is_changed in zip(KEPT, changed, strict=True) if is_changed]
    assignments = ", ".join(f"{name} = ?" for name in columns)
    return f"UPDATE penstock_counter SET {assignments} WHERE queue_id = ?", attrgetter(*columns, "id")


class Queue:
    """One queue as the running transaction sees it. Counters are written back once, when the transaction ends."""

    __slots__ = (
        "_written",
        "archived",
        "created_at",
        "cursor",
        "dead",
        "due_at",
        "expiry_at",
        "filed",
        "id",
        "lapse_at",
        "leased",
        "minute",
        "n_acked",
        "n_dead",
        "n_expired",
        "n_lapsed",
        "n_leased",
        "n_nacked",
        "n_pushed",
        "n_redriven",
        "n_removed",
        "name",
        "newest_at",
        "options",
        "paused",
        "plain_end",
        "plain_start",
        "ready",
        "scheduled",
        "tokens",
        "tokens_at",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.id,
            self.name,
            options,
            paused,
            self.created_at,
            self.cursor,
            self.newest_at,
            self.minute,
            self.tokens,
            self.tokens_at,
            self.ready,
            self.scheduled,
            self.leased,
            self.dead,
            self.archived,
            self.n_pushed,
            self.n_leased,
            self.n_acked,
            self.n_nacked,
            self.n_lapsed,
            self.n_dead,
            self.n_expired,
            self.n_redriven,
            self.n_removed,
        ) = row
        self.options: QueueOptions = decode_options(options)
        self.paused = bool(paused)
        self.plain_start = self.id << ID_BITS + 1
        self.plain_end = self.plain_start + (1 << ID_BITS)
        # Lower bounds of the next time at which something moves by itself; 0 means: look.
        self.due_at = self.lapse_at = self.expiry_at = 0
        self.filed = True
        """Whether the ready table may hold rows of this queue."""
        self._written = _kept(self)

    def place(self, message_id: int, *, plain: bool) -> int:
        lane: int = self.plain_start if plain else self.plain_end
        return lane | message_id

    @property
    def undone(self) -> int:
        return int(self.ready + self.scheduled + self.leased)

    def write(self, connection: sqlite3.Connection, now: int) -> None:
        """Write what changed, closing the minute first if it is over."""
        minute = now // 60_000
        if minute > self.minute:
            connection.execute(END_MINUTE, (self.id,))
            self.minute = minute
        kept = _kept(self)
        before = self._written
        update, values = _statement(tuple(map(ne, kept, before)))
        connection.execute(update, values(self))
        if "/" in self.name:
            was_busy = before[0] + before[1] + before[2] > 0
            if was_busy != (self.undone > 0):
                if was_busy:
                    connection.execute(SQL["idle"], (self.name,))
                else:
                    connection.execute(SQL["busy"], (self.name, self.id))
        self._written = kept

    def info(self) -> QueueInfo:
        return QueueInfo(
            name=self.name,
            options=self.options,
            paused=self.paused,
            created_at=self.created_at,
            totals=Totals(**{name: getattr(self, f"n_{name}") for name in TOTALS}),
            **{name: getattr(self, name) for name in GAUGES},
        )
