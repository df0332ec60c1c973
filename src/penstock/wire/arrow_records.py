"""Converts Arrow columns to records. pyarrow is an extra, imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.core.model import Content
from penstock.errors import InvalidInput, MissingExtra, WrongType
from penstock.log.model import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, NewRecord, Payload

COLUMN = "data"


def check_arrow() -> None:
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtra("arrow") from None


def batches_of(data: Any) -> Iterator[Any]:
    """Yield the record batches of a table, a reader, a batch, or several of those."""
    check_arrow()
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif hasattr(data, "__iter__") and not isinstance(data, str | bytes | dict):
        for each in data:
            yield from batches_of(each)
    else:
        raise WrongType(f"expected an Arrow table or record batches, got {type(data).__name__}", field=COLUMN)


def payloads_of(batch: Any) -> Sequence[Payload]:
    """Return the column `data`, or the only column: binary as bytes, string as text. Other columns are ignored."""
    import pyarrow as pa

    names = batch.schema.names
    if COLUMN not in names and len(names) != 1:
        raise InvalidInput("there is no column named 'data'", field=COLUMN, hint="name the record column 'data'")
    column = batch.column(names.index(COLUMN) if COLUMN in names else 0)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    if not any(check(column.type) for check in kinds):
        raise InvalidInput(f"records must be binary or string, got {column.type}", field=COLUMN)
    if column.null_count:
        raise InvalidInput("a record cannot be null", field=COLUMN)
    values: list[Any] = column.to_pylist()
    if values and isinstance(values[0], str):
        return [NewRecord(value.encode(), Content.TEXT) for value in values]
    return values


def in_commits(payloads: Sequence[Payload]) -> Iterator[Sequence[Payload]]:
    """Split records where a commit would become too large. The stream itself refuses a record that is too large."""
    cut = size = 0
    for at, payload in enumerate(payloads):
        length = len(payload if isinstance(payload, bytes) else payload.data)
        if at > cut and (at - cut == BATCH_RECORDS_MAX or size + length > BATCH_BYTES_MAX):
            yield payloads[cut:at]
            cut, size = at, 0
        size += length
    if cut < len(payloads):
        yield payloads[cut:]
