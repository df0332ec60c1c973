"""Describes the columns of the journal and of streams, as comments that `DESCRIBE` and catalogs show."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from penstock.pipeline.source.log_sources import schema_of

STREAM = {
    "offset": "offset of the record in the stream",
    "timestamp": "when the record was appended; never decreases",
    "data": "the record",
}


def spark_schema(stream: str | None) -> StructType:
    """Return the columns of a stream, or of the journal, with comments."""
    return StructType([_field(field) for field in schema_of(stream)])


def _field(field: pa.Field) -> StructField:
    comment = STREAM.get(field.name) if field.metadata is None else field.metadata[b"comment"].decode()
    return StructField(field.name, from_arrow_type(field.type), field.nullable, {"comment": comment})
