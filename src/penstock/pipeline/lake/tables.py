"""The lake's tables: their columns, and the columns by which files can be skipped.

Readers may rely on these columns. New ones may be added; they are null in files written before.
"""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from penstock.journal.arrow import SCHEMA as EVENTS
from penstock.journal.arrow import TIME, columns

ERRORS = pa.list_(pa.struct([("attempt", pa.int32()), ("at", TIME), ("error", pa.string())]))
# Events by kind, in gold.
COUNTS = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "removed", "redriven", "released")
EVENTS_COUNTED = (
    "Counts are of events: `acked` includes dead letters that a consumer leased from the dead-letter queue and "
    "acknowledged. In silver.messages these are no lives that ended with an ack."
)
STATES = ("waiting", "leased", "dead")
LATENCIES = ("wait", "service", "total")
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class Table(Struct, frozen=True):
    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    """Columns that identify a row."""
    ranged: tuple[str, ...]
    """Columns with minimum and maximum in each file's statistics."""
    about: str
    changes: bool = False
    """True if new rows replace old ones with the same keys."""
    note: str = ""
    """A note on what readers often misunderstand."""
    clustered: str | None = None
    """Column by which the rows of a file are sorted, so that readers of one value skip the row groups of others."""
    emptied: tuple[str, ...] = ()
    """Columns that retention empties before it drops rows; their nulls are in each file's statistics."""


BRONZE = Table(
    "bronze.events",
    EVENTS,
    ("offset", "number"),
    ("offset", "queue", "at"),
    "everything, as it happened: one row per event of the journal",
    clustered="queue",
    emptied=("body",),
)

# Silver and gold need no bodies.
EVENT_COLUMNS = [name for name in EVENTS.names if name != "body"]

SILVER = Table(
    "silver.messages",
    columns(
        ("offset", pa.int64(), "of the event that ended this life"),
        ("number", pa.int32()),
        ("queue", pa.string()),
        ("queue_id", pa.int64()),
        ("id", pa.int64()),
        ("uuid", pa.string()),
        ("outcome", pa.string(), "acked, dead, failed (dead, and not kept), expired, removed"),
        ("pushed_at", TIME),
        ("first_leased_at", TIME),
        ("leased_at", TIME, "for the last time"),
        ("finished_at", TIME),
        ("attempts", pa.int32(), "null for a life that a removal ended"),
        ("wait_ms", pa.int64(), "from push to the first lease"),
        ("service_ms", pa.int64(), "from the last lease to the end"),
        ("total_ms", pa.int64(), "from push to the end"),
        ("reason", pa.string(), "why it is dead"),
        ("errors", ERRORS),
    ),
    ("offset", "number", "id"),
    ("offset", "queue", "finished_at"),
    "one row per finished life of a message",
    clustered="queue",
    note="The life of a dead letter ended when it died. If a consumer leases it from the dead-letter queue and "
    "acknowledges it, that adds no row here, but it is counted as `acked` in gold.queues and gold.queue_minutes.",
)

QUEUES = Table(
    "gold.queues",
    columns(
        ("queue", pa.string()),
        ("first_at", TIME),
        ("last_at", TIME),
        *((name, pa.int64()) for name in COUNTS),
        *((f"{state}_now", pa.int64()) for state in STATES),
    ),
    ("queue",),
    ("last_at",),
    "one row per queue: totals since the journal began, and what it holds now",
    changes=True,
    note=EVENTS_COUNTED,
)

QUEUE_MINUTES = Table(
    "gold.queue_minutes",
    columns(
        ("queue", pa.string()),
        ("minute", TIME),
        *((name, pa.int64()) for name in COUNTS),
        *((f"{state}_change", pa.int64()) for state in STATES),
        *((f"{state}_end", pa.int64()) for state in STATES),
        ("depth", pa.int64(), "waiting and leased, at the minute's end"),
        *((f"{latency}_{share}_ms", pa.int64()) for latency in LATENCIES for share in SHARES),
        *((f"{latency}_sketch", pa.binary()) for latency in LATENCIES),
    ),
    ("queue", "minute"),
    ("minute",),
    "one row per queue and minute in which something happened",
    changes=True,
    note=EVENTS_COUNTED,
)

QUEUE_ERRORS = Table(
    "gold.errors",
    columns(
        ("queue", pa.string()),
        ("hour", TIME),
        ("fingerprint", pa.string(), "the same for errors that differ only in numbers, ids and quoted words"),
        ("pattern", pa.string(), "the error's text with those left out"),
        ("sample", pa.string(), "one whole text"),
        ("nacked", pa.int64()),
        ("lapsed", pa.int64()),
        ("dead", pa.int64()),
        ("first_at", TIME),
        ("last_at", TIME),
    ),
    ("queue", "hour", "fingerprint"),
    ("hour",),
    "what fails, by queue, hour and fingerprint of the error's text",
    changes=True,
)

TABLES = {table.name: table for table in (BRONZE, SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)}

LIVE_QUEUES = Table(
    "live.queues",
    columns(
        ("queue", pa.string()),
        ("paused", pa.bool_()),
        *((name, pa.int64()) for name in ("ready", "scheduled", "leased", "dead", "archived")),
    ),
    ("queue",),
    (),
    "one row per queue of the store at the time of the query",
)

LIVE_MESSAGES = Table(
    "live.messages",
    columns(
        ("queue", pa.string()),
        ("id", pa.int64()),
        ("uuid", pa.string()),
        ("state", pa.string(), "ready, scheduled, leased, dead, archived"),
        ("priority", pa.int32()),
        ("attempts", pa.int32(), "deliveries so far"),
        ("pushed_at", TIME),
        ("available_at", TIME, "when it is, or was, due"),
        ("expires_at", TIME),
        ("first_leased_at", TIME),
        ("leased_at", TIME, "for the last time"),
        ("leased_until", TIME),
        ("worker", pa.string(), "who leased it, if the consumer gave a name"),
        ("finished_at", TIME, "when it was archived or died"),
        ("reason", pa.string(), "why it is dead"),
        ("errors", ERRORS, "the last one first"),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("content", pa.string(), "what the body is: bytes, text, json"),
        ("body", pa.binary()),
    ),
    ("queue", "id"),
    (),
    "one row per message of the store. Read page by page: one that moves meanwhile may be missing or appear twice",
)

# Not in the lake: `pipeline sql` reads them from the store.
LIVE = {table.name: table for table in (LIVE_QUEUES, LIVE_MESSAGES)}
