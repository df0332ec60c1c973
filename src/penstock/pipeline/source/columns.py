"""Describes the columns of the journal and of streams, as comments that `DESCRIBE` and catalogs show."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from penstock.pipeline.source.log_sources import schema_of

JOURNAL = {
    "offset": "offset of the record in the journal",
    "number": "number of the event within its record",
    "at": "when it happened",
    "kind": "what happened: pushed, leased, acked, nacked, dead and so on",
    "queue": "name of the queue",
    "queue_id": "identifies the queue even if another of the same name is created later",
    "id": "id of the message; null for an event of a queue or a worker",
    "uuid": "id of the message, unique across stores",
    "pushed_at": "when the message was pushed",
    "first_leased_at": "when the message was first leased",
    "leased_at": "when the message was last leased",
    "until": "of a lease: its end; of a push or nack: when the message is due",
    "attempts": "number of deliveries so far",
    "priority": "priority of the message",
    "marks": "a sum of flags",
    "details": "JSON: key, headers, errors, reasons, options, who asked",
    "content": "what the body is: bytes, text or json",
    "body": "payload of a push, unless the queue keeps payloads out of the journal",
}
STREAM = {
    "offset": "offset of the record in the stream",
    "timestamp": "when the record was appended; never decreases",
    "data": "the record",
}


def spark_schema(stream: str | None) -> StructType:
    """Return the columns of a stream, or of the journal, with comments."""
    comments = JOURNAL if stream is None else STREAM
    return StructType([_field(field, comments[field.name]) for field in schema_of(stream)])


def _field(field: pa.Field, comment: str) -> StructField:
    return StructField(field.name, from_arrow_type(field.type), field.nullable, {"comment": comment})
