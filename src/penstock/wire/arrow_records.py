"""Arrow columns as records to append. pyarrow is an extra, loaded when it is used."""

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
    """The record batches of a table, a reader, a batch or several of those."""
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
        raise WrongType(f"an Arrow table or record batches, not {type(data).__name__}", field=COLUMN)


def payloads_of(batch: Any) -> Sequence[Payload]:
    """The column `data`, or the only one: binary is bytes, string is text. Other columns are passed over."""
    import pyarrow as pa

    names = batch.schema.names
    if COLUMN not in names and len(names) != 1:
        raise InvalidInput("which column holds the records?", field=COLUMN, hint="call it data")
    column = batch.column(names.index(COLUMN) if COLUMN in names else 0)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    if not any(check(column.type) for check in kinds):
        raise InvalidInput(f"records are binary or string, not {column.type}", field=COLUMN)
    if column.null_count:
        raise InvalidInput("a record cannot be null", field=COLUMN)
    values: list[Any] = column.to_pylist()
    if values and isinstance(values[0], str):
        return [NewRecord(value.encode(), Content.TEXT) for value in values]
    return values


def in_commits(payloads: Sequence[Payload]) -> Iterator[Sequence[Payload]]:
    """Cut where a commit would become too large; a single record is refused by the stream's own limit."""
    cut = size = 0
    for at, payload in enumerate(payloads):
        length = len(payload if isinstance(payload, bytes) else payload.data)
        if at > cut and (at - cut == BATCH_RECORDS_MAX or size + length > BATCH_BYTES_MAX):
            yield payloads[cut:at]
            cut, size = at, 0
        size += length
    if cut < len(payloads):
        yield payloads[cut:]
