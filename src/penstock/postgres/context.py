"""State shared by all users of one database: its SQL statements, its lock keys and its clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from penstock.core.model import system_clock
from penstock.core.sql_files import load_sql

VERBS = (
    "begin push lease lease_range settle transitions counter admin access latency history queries stream journal worker"
)
# Kind of lock for appends to a stream; queues use the lower kinds.
STREAM_LOCK = 4
# Beyond this number queues share locks: PostgreSQL has room for a few thousand locks in total.
LOCK_BUCKETS = 1024


def quoted(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def in_schema(sql: str, schema: str) -> str:
    """Return a statement for another schema than `penstock`, which the SQL files name."""
    return re.sub(r"\bpenstock\.", lambda _: quoted(schema) + ".", sql)


@lru_cache(maxsize=64)
def statements(schema: str) -> dict[str, bytes]:
    """Return every statement by `verb.name`."""
    found = {}
    for verb in VERBS.split():
        for name, sql in load_sql("penstock.postgres", verb).items():
            found[f"{verb}.{name}"] = in_schema(sql, schema).encode()
    return found


class DatabaseContext:
    def __init__(self, schema: str, store_id: int, clock: Callable[[], int] | None) -> None:
        self.schema = schema
        self.sql = statements(schema)
        self.store_id = store_id
        # None uses the clock of the database.
        self.clock = clock
        # How far the clock of the database is ahead of this machine.
        self.ahead_ms = 0

    def lock_key(self, kind: int, queue_id: int) -> int:
        return self.store_id << 16 | kind << 10 | queue_id % LOCK_BUCKETS

    def now(self) -> int:
        """Return the database's time, estimated from the last transaction."""
        return system_clock() + self.ahead_ms if self.clock is None else self.clock()
