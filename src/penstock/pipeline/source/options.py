"""The options of `format("penstock")`, with the names and meanings of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

from msgspec import Struct

from penstock.core.ids import check_queue_name
from penstock.core.paths import without_file_scheme
from penstock.core.redact import place_in
from penstock.errors import InvalidInput, OffsetTrimmed
from penstock.log.consumers import check_consumer_name
from penstock.log.streams import check_stream_name
from penstock.pipeline.lake.storage import Folder, folder_at
from penstock.pipeline.source.log_sources import SERVERS, SourceLog, database_of, location_of, time_column
from penstock.pipeline.source.timestamps import microseconds_of, offset_at
from penstock.store.factory import POSTGRES

READ_OPTIONS = {
    "url": "a server's data folder, postgresql://… or http(s)://… (or as the argument of load)",
    "token": "a server's admin token or API key",
    "stream": "stream to read; by default the journal",
    "startingOffsets": "earliest (default), latest, or an offset",
    "endingOffsets": "latest (default) or an exclusive offset; batch reads only",
    "startingTimestamp": "milliseconds since 1970 or RFC 3339: start at the first record of then or later",
    "endingTimestamp": "end before the first record of then or later; batch reads only",
    "maxOffsetsPerTrigger": "maximum number of records in a micro-batch",
    "minPartitions": "minimum number of tasks, if there are as many records",
    "failOnDataLoss": "true (default): fail if records were trimmed before they were read; false: skip and count them",
    "pushFilters": "true: filters reduce what is read, for a DataFrame that one query uses; set by the reader for Java",
    "consumer": "name under which a streaming query reports its position; by default none",
}
WRITE_OPTIONS = {
    "url": "a server's data folder, postgresql://… or http(s)://… (or as the argument of save)",
    "queue": "the queue to push into",
    "stream": "the stream to append to, instead of a queue",
    "token": "a server's admin token or API key",
    "name": "idempotency name of a batch write: repeating it adds nothing; streaming queries use their checkpoint",
    "staging": "folder or URL (s3://…) that all tasks reach, for staged rows; by default beside the database",
}
SPARKS_OWN = {"checkpointlocation", "queryname"}
OFFSET_MAX = 2**53
TIME_US_MAX = 2**62
# File systems limit names to 255 bytes, and a prefix needs a few.
NAME_LETTERS_MAX = 246

Edge = Literal["earliest", "latest"]


class Timestamp(Struct, frozen=True):
    """A place in a log, given by a time."""

    time_us: int


Place = int | Edge | Timestamp


class ReadOptions(Struct, frozen=True, kw_only=True):
    location: str
    token: str | None
    stream: str | None
    start: Place
    end: Place
    offsets_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    pushes_filters: bool
    consumer: str | None

    def open(self) -> SourceLog:
        return location_of(self.location, self.stream, self.token).open()

    def first(self, log: SourceLog) -> int:
        """Return the first offset to read."""
        return self._at(log, self.start)

    def last(self, log: SourceLog) -> int:
        return min(self._at(log, self.end), log.next_offset)

    def _at(self, log: SourceLog, place: Place) -> int:
        if isinstance(place, Timestamp):
            return offset_at(log, place.time_us, time_column(self.stream))
        if place == "earliest":
            return log.first_offset
        return log.next_offset if place == "latest" else int(place)

    def lost(self, log: SourceLog, start: int) -> int:
        """Return how many records from an offset on were trimmed; raise if data loss is an error."""
        first = log.first_offset
        if start < first and self.fail_on_data_loss:
            error = OffsetTrimmed(log.name, start, first)
            error.hint = f"offsets {start} to {first - 1} were trimmed; failOnDataLoss=false continues without them"
            raise error
        return max(0, first - start)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = _canonical(given, READ_OPTIONS)
    consumer = options.get("consumer")
    return ReadOptions(
        location=_location(options),
        token=options.get("token"),
        stream=options.get("stream"),
        start=_timestamp(options, "startingTimestamp") or _offset(options, "startingOffsets", "earliest"),
        end=_timestamp(options, "endingTimestamp") or _offset(options, "endingOffsets", "latest"),
        offsets_max=_number(options, "maxOffsetsPerTrigger"),
        partitions_min=_number(options, "minPartitions") or 0,
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        pushes_filters=_flag(options, "pushFilters", False),
        consumer=None if consumer is None else check_consumer_name(f"spark:{consumer}"),
    )


class WriteOptions(Struct, frozen=True, kw_only=True):
    url: str
    queue: str | None = None
    stream: str | None = None
    token: str | None
    name: str | None
    staging: Folder

    @property
    def into(self) -> str:
        """Name of the target for messages."""
        return f"{self.kind_and_name} of {place_in(self.url)}"

    @property
    def kind_and_name(self) -> str:
        return f"queue {self.queue!r}" if self.queue is not None else f"stream {self.stream!r}"


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _canonical(given, WRITE_OPTIONS)
    if ("queue" in options) == ("stream" in options):
        raise _bad("set one of the options queue and stream", "queue", WRITE_OPTIONS)
    location = _location(options)
    remote = location.startswith((*SERVERS, *POSTGRES))
    if remote and "staging" not in options:
        raise _bad("the option staging is required with a server or a database", "staging", WRITE_OPTIONS)
    database = None if remote else database_of(location)
    return WriteOptions(
        url=location if database is None else f"sqlite:///{database.absolute()}",
        queue=check_queue_name(options["queue"]) if "queue" in options else None,
        stream=check_stream_name(options["stream"]) if "stream" in options else None,
        token=options.get("token"),
        name=check_write_name(options["name"]) if "name" in options else None,
        staging=folder_at(options["staging"], "staging") if "staging" in options else Path(f"{database}.staging"),
    )


def check_write_name(name: str) -> str:
    """Check a write name, which becomes a folder name and part of every message key."""
    if not name.isprintable():
        raise InvalidInput("the write name has unprintable characters", field="name")
    if not 0 < len(quote(name, safe="")) <= NAME_LETTERS_MAX:
        raise InvalidInput("the write name is empty or too long", field="name", hint="use 1 to about 200 characters")
    return name


def _canonical(given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their canonical names; Spark's option names are case-insensitive."""
    if "provider" in given:
        # Spark passes this when it creates a table, and would not pass the table's options when it is read.
        text = "CREATE TABLE is not supported: Spark does not pass a table's options to data sources in Python"
        raise InvalidInput(text, field="provider", hint="use CREATE TEMPORARY VIEW … USING penstock OPTIONS (…)")
    names = {name.lower(): name for name in (*known, "path")}
    options = {}
    for name, value in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in names:
            raise _bad(f"unknown option {name!r}", name, known)
        options[names[name.lower()]] = value
    return options


def _bad(text: str, field: str, known: Mapping[str, str]) -> InvalidInput:
    listed = "; ".join(f"{name}: {what}" for name, what in known.items())
    return InvalidInput(text, field=field, hint=f"options are {listed}")


def _location(options: Mapping[str, str]) -> str:
    location = options.get("url") or options.get("path")
    if not location:
        raise _bad("the option url is missing", "url", READ_OPTIONS)
    return without_file_scheme(location)


def _offset(options: Mapping[str, str], name: str, default: Edge) -> int | Edge:
    value = options.get(name, default).lower()
    if value in ("earliest", "latest"):
        return cast(Edge, value)
    if not value.isdecimal() or int(value) > OFFSET_MAX:
        raise _bad(f"{name} must be earliest, latest or an offset, not {value!r}", name, READ_OPTIONS)
    return int(value)


def _timestamp(options: Mapping[str, str], name: str) -> Timestamp | None:
    """Return the place given by a time, which takes precedence over one given by an offset, as in Kafka's source."""
    value = options.get(name)
    if value is None:
        return None
    time_us = microseconds_of(value)
    if time_us is None or not 0 <= time_us <= TIME_US_MAX:
        text = f"{name} must be milliseconds since 1970 or a time such as 2026-01-31T09:00:00Z, not {value!r}"
        raise _bad(text, name, READ_OPTIONS)
    return Timestamp(time_us)


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is not None and (not value.isdecimal() or not 0 < int(value) <= OFFSET_MAX):
        raise _bad(f"{name} must be a number above 0, not {value!r}", name, READ_OPTIONS)
    return None if value is None else int(value)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise _bad(f"{name} must be true or false, not {value!r}", name, READ_OPTIONS)
    return value == "true"
