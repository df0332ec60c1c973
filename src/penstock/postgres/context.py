"""What every user of one database shares: its SQL statements, its locks and its clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from penstock.core.model import system_clock
from penstock.core.sql_files import load_sql

VERBS = (
    "begin push lease settle transitions counter admin access latency history queries stream journal worker fastpath"
)
STREAM_LOCK = 4
"""Of appends to a stream; queues have the kinds below."""
LOCK_BUCKETS = 1024
"""Queues share locks beyond that many: PostgreSQL has room for some thousands of locks in all."""


def quoted(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def in_schema(sql: str, schema: str) -> str:
    """The tables are written as `penstock.…`; they may be in another schema."""
    return re.sub(r"\bpenstock\.", lambda _: quoted(schema) + ".", sql)


@lru_cache(maxsize=64)
def statements(schema: str) -> dict[str, bytes]:
    """Every statement, under `verb.name`."""
    found = {}
    for verb in VERBS.split():
        for name, sql in load_sql("penstock.postgres", verb).items():
            found[f"{verb}.{name}"] = in_schema(sql, schema).encode()
    return found


class DatabaseContext:
    def __init__(self, schema: str, salt: int, clock: Callable[[], int] | None) -> None:
        self.schema = schema
        self.sql = statements(schema)
        self.salt = salt
        self.clock = clock
        """None: the database's."""
        self.ahead_ms = 0
        """How far the database's clock is ahead of this machine's."""

    def lock_key(self, kind: int, queue_id: int) -> int:
        return self.salt << 16 | kind << 10 | queue_id % LOCK_BUCKETS

    def now(self) -> int:
        """The database's time, as far as the last transaction told."""
        return system_clock() + self.ahead_ms if self.clock is None else self.clock()
