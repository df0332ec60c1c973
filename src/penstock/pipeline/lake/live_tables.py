"""The current store for SQL beside the lake's tables: `live.queues` and `live.messages`.

A table is written to a temporary file when a query names it, page by page, so that a store of any size fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock import Client, connect
from penstock.core.model import QueueInfo, State, StoredMessage
from penstock.errors import UnknownQueue
from penstock.pipeline.lake.tables import LIVE_MESSAGES, LIVE_QUEUES, Table

PAGE = 1_000
# Against the direction in which messages move, so that one that moves meanwhile is not read twice.
STATES = (State.ARCHIVED, State.DEAD, State.LEASED, State.SCHEDULED, State.READY)
Row = dict[str, Any]


class LiveTables(Struct, frozen=True):
    url: str | None
    """URL for `penstock.connect`; None if there is no store."""
    token: str | None = None

    def write(self, table: Table, file: Path) -> None:
        with pq.ParquetWriter(file, table.schema) as writer:
            if self.url is None:
                return
            with connect(self.url, token=self.token) as client:
                for rows in _PAGES[table.name](client):
                    writer.write_table(pa.Table.from_pylist(rows, schema=table.schema))


def _queue_rows(client: Client) -> Iterator[list[Row]]:
    for page in _queues(client):
        yield [{**_fields(each, LIVE_QUEUES), "queue": each.name} for each in map(partial(_current, client), page)]


def _current(client: Client, queue: QueueInfo) -> QueueInfo:
    """Refresh the counts: without a server, a peek moves messages whose lease or delay has ended."""
    if queue.leased or queue.scheduled:
        with suppress(UnknownQueue):  # It was removed meanwhile.
            client.transport.peek(queue.name, State.READY, 1, None)
            return client.transport.info(queue.name)
    return queue


def _message_rows(client: Client) -> Iterator[list[Row]]:
    for page in _queues(client):
        for queue in page:
            # The counts may be stale: the first peek moves messages whose lease or delay has ended.
            if any(getattr(queue, state) for state in STATES):
                with suppress(UnknownQueue):  # It was removed meanwhile.
                    for state in STATES:
                        yield from _held(client, queue.name, state)


def _queues(client: Client) -> Iterator[list[QueueInfo]]:
    after: str | None = None
    while True:
        page = client.queues(limit=PAGE, after=after)
        yield page
        after = page.next
        if after is None:
            return


def _held(client: Client, queue: str, state: State) -> Iterator[list[Row]]:
    after: str | None = None
    while True:
        page = client.transport.peek(queue, state, PAGE, after)
        yield [_message_row(each) for each in page]
        after = page.next
        if after is None:
            return


def _message_row(message: StoredMessage) -> Row:
    row = _fields(message, LIVE_MESSAGES)
    row |= {name: _time(value) for name, value in row.items() if name.endswith(("_at", "_until"))}
    return row | {
        "pushed_at": _time(message.created_at),
        "headers": None if message.headers is None else list(message.headers.items()),
        "errors": [{"attempt": each.attempt, "at": _time(each.at), "error": each.error} for each in message.errors],
        "body": message.payload,
    }


def _fields(of: QueueInfo | StoredMessage, table: Table) -> Row:
    return {name: getattr(of, name) for name in table.schema.names if hasattr(of, name)}


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


_PAGES = {LIVE_QUEUES.name: _queue_rows, LIVE_MESSAGES.name: _message_rows}
