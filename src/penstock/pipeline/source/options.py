"""The options of `format("penstock")`, named and meant as those of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

from msgspec import Struct

from penstock.core.ids import check_queue_name
from penstock.core.paths import local_path, without_file_scheme
from penstock.core.redact import place_in
from penstock.errors import InvalidInput, OffsetTrimmed
from penstock.log.consumers import check_consumer_name
from penstock.log.streams import check_stream_name
from penstock.pipeline.source.log_sources import SERVERS, SourceLog, database_of, location_of
from penstock.store.factory import POSTGRES

READ_OPTIONS = {
    "url": "a server's data folder, postgresql://… or http(s)://… (or as the argument of load)",
    "token": "a server's admin token or API key",
    "stream": "a stream's name; the journal if there is none",
    "startingOffsets": "earliest (default), latest, or an offset",
    "endingOffsets": "latest (default) or an offset, which is not read; for a batch",
    "maxOffsetsPerTrigger": "at most so many records in a micro-batch",
    "minPartitions": "at least so many tasks, if there are as many records",
    "failOnDataLoss": "true (default) or false: records that are no longer kept are an error, or counted",
    "consumer": "under which name a streaming query reports its position; none if not given",
}
WRITE_OPTIONS = {
    "url": "a server's data folder, postgresql://… or http(s)://… (or as the argument of save)",
    "queue": "the queue to push into",
    "stream": "the stream to append to, if it is no queue",
    "token": "a server's admin token or API key",
    "name": "what this write is called: the same batch under the same name adds nothing; a stream has its checkpoint",
    "staging": "a folder that all tasks share, for rows on their way; in the data folder if not given",
}
SPARKS_OWN = {"checkpointlocation", "queryname"}
OFFSET_MAX = 2**53
# As a file system counts them, with a few before it.
NAME_LETTERS_MAX = 246

Edge = Literal["earliest", "latest"]


class ReadOptions(Struct, frozen=True, kw_only=True):
    place: str
    token: str | None
    stream: str | None
    start: int | Edge
    end: int | Edge
    offsets_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    consumer: str | None

    def open(self) -> SourceLog:
        return location_of(self.place, self.stream, self.token).open()

    def first(self, log: SourceLog) -> int:
        """Where to begin."""
        return _at(log, self.start)

    def last(self, log: SourceLog) -> int:
        return min(_at(log, self.end), log.next_offset)

    def lost(self, log: SourceLog, start: int) -> int:
        """How many records from an offset on were trimmed away: an error that names it, or that many."""
        first = log.first_offset
        if start < first and self.fail_on_data_loss:
            error = OffsetTrimmed(log.name, start, first)
            error.hint = f"offsets {start} to {first - 1} are gone; failOnDataLoss=false goes on without them"
            raise error
        return max(0, first - start)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    told = _told(given, READ_OPTIONS)
    consumer = told.get("consumer")
    return ReadOptions(
        place=_place(told),
        token=told.get("token"),
        stream=told.get("stream"),
        start=_offset(told, "startingOffsets", "earliest"),
        end=_offset(told, "endingOffsets", "latest"),
        offsets_max=_number(told, "maxOffsetsPerTrigger"),
        partitions_min=_number(told, "minPartitions") or 0,
        fail_on_data_loss=_flag(told, "failOnDataLoss", True),
        consumer=None if consumer is None else check_consumer_name(f"spark:{consumer}"),
    )


class WriteOptions(Struct, frozen=True, kw_only=True):
    url: str
    queue: str | None = None
    stream: str | None = None
    token: str | None
    name: str | None
    staging: Path

    @property
    def into(self) -> str:
        """In words."""
        return f"{self.kind_and_name} of {place_in(self.url)}"

    @property
    def kind_and_name(self) -> str:
        return f"queue {self.queue!r}" if self.queue is not None else f"stream {self.stream!r}"


def write_options(given: Mapping[str, str]) -> WriteOptions:
    told = _told(given, WRITE_OPTIONS)
    if ("queue" in told) == ("stream" in told):
        raise _bad("one of the options queue and stream is needed", "queue", WRITE_OPTIONS)
    place = _place(told)
    remote = place.startswith((*SERVERS, *POSTGRES))
    if remote and "staging" not in told:
        raise _bad("with a server or a database, the option staging is needed", "staging", WRITE_OPTIONS)
    database = None if remote else database_of(place)
    return WriteOptions(
        url=place if database is None else f"sqlite:///{database.absolute()}",
        queue=check_queue_name(told["queue"]) if "queue" in told else None,
        stream=check_stream_name(told["stream"]) if "stream" in told else None,
        token=told.get("token"),
        name=check_write_name(told["name"]) if "name" in told else None,
        staging=local_path(told["staging"], "staging") if "staging" in told else Path(f"{database}.staging"),
    )


def check_write_name(name: str) -> str:
    """It becomes a folder's name, and part of every message's key."""
    if not name.isprintable():
        raise InvalidInput("the name of this write has characters that do not print", field="name")
    if not 0 < len(quote(name, safe="")) <= NAME_LETTERS_MAX:
        raise InvalidInput("the name of this write is empty or too long", field="name", hint="1 to some 200 letters")
    return name


def _told(given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """By their proper names; Spark's do not mind the case."""
    names = {name.lower(): name for name in (*known, "path")}
    told = {}
    for name, value in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in names:
            raise _bad(f"there is no option {name!r}", name, known)
        told[names[name.lower()]] = value
    return told


def _bad(text: str, field: str, known: Mapping[str, str]) -> InvalidInput:
    listed = "; ".join(f"{name}: {what}" for name, what in known.items())
    return InvalidInput(text, field=field, hint=f"options are {listed}")


def _place(told: Mapping[str, str]) -> str:
    place = told.get("url") or told.get("path")
    if not place:
        raise _bad("the option url is missing", "url", READ_OPTIONS)
    return without_file_scheme(place)


def _offset(told: Mapping[str, str], name: str, default: Edge) -> int | Edge:
    value = told.get(name, default).lower()
    if value in ("earliest", "latest"):
        return cast(Edge, value)
    if not value.isdecimal() or int(value) > OFFSET_MAX:
        raise _bad(f"{name} is earliest, latest or an offset, not {value!r}", name, READ_OPTIONS)
    return int(value)


def _number(told: Mapping[str, str], name: str) -> int | None:
    value = told.get(name)
    if value is not None and (not value.isdecimal() or not 0 < int(value) <= OFFSET_MAX):
        raise _bad(f"{name} is a number above 0, not {value!r}", name, READ_OPTIONS)
    return None if value is None else int(value)


def _flag(told: Mapping[str, str], name: str, default: bool) -> bool:
    value = told.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise _bad(f"{name} is true or false, not {value!r}", name, READ_OPTIONS)
    return value == "true"


def _at(log: SourceLog, offset: int | Edge) -> int:
    if offset == "earliest":
        return log.first_offset
    return log.next_offset if offset == "latest" else int(offset)
