"""Decodes message bodies to typed columns, batch by batch. Bodies that do not fit are kept apart, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.arrow import TIME, columns
from penstock.pipeline.models.expectations import Expectation, failing, reason_of
from penstock.pipeline.models.fields import Field

ENVELOPE = columns(
    ("offset", pa.int64(), "of the push in the journal"),
    ("number", pa.int32(), "of the event within its record"),
    ("id", pa.int64(), "of the message"),
    ("uuid", pa.string(), "of the message"),
    ("pushed_at", TIME, "when the message was pushed"),
)
BODIES = (*ENVELOPE.names, "body")
QUARANTINE = pa.schema(
    [
        *ENVELOPE,
        *columns(
            ("body", pa.binary(), "the message's body, unchanged"),
            ("reason", pa.string(), "why the body does not fit"),
            ("field", pa.string(), "path of the field; null if the body is not JSON"),
        ),
    ]
)
RESERVED = frozenset(ENVELOPE.names)
_INT64 = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": Annotated[int, _INT64],
    "number": float,
    "boolean": bool,
    "date-time": Annotated[datetime, msgspec.Meta(tz=True)],
}
# A time zone can move a valid local time out of the years that readers support.
_FIRST_US = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_AFTER_US = (int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) + 86_400) * 1_000_000
_AT = re.compile(r" - at `(?P<path>\$.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>.*)`$", re.DOTALL)
Split = tuple[pa.RecordBatch, pa.RecordBatch]


def schema_of(root: Field) -> pa.Schema:
    """Return the columns of a typed table."""
    return pa.schema([*ENVELOPE, *(field.arrow_field for field in root.fields)])


class BodyDecoder:
    """Splits batches of messages into typed rows and rejected ones."""

    def __init__(self, root: Field, expectations: Sequence[Expectation] = ()) -> None:
        self._root = root
        self._schema = schema_of(root)
        self._decode = msgspec.json.Decoder(_type_of(root)).decode
        self._quarantine = [each for each in expectations if each.action == "quarantine"]

    def split(self, batch: pa.RecordBatch) -> Split:
        """Return the typed rows, and the others for the quarantine table."""
        bodies = batch.column("body").to_pylist()
        good: list[int] = []
        rows: list[Any] = []
        rejected: dict[int, tuple[str, str | None]] = {}
        decode = self._decode
        for number, body in enumerate(bodies):
            try:
                rows.append(decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                rejected[number] = _reason(error)
            else:
                good.append(number)
        kept = self._table(batch, good, rows)
        for mask, reason, field in self._masks(kept):
            for place in pc.indices_nonzero(mask).to_pylist():
                rejected.setdefault(good[place], (reason, field))
        if len(rejected) + kept.num_rows > len(bodies):
            kept = kept.filter(pa.array([number not in rejected for number in good]))
        return kept, _rejects(batch, rejected)

    def _table(self, batch: pa.RecordBatch, good: Sequence[int], rows: Sequence[Any]) -> pa.RecordBatch:
        envelope = batch.select(ENVELOPE.names)
        if len(good) < batch.num_rows:
            envelope = envelope.take(pa.array(good, pa.int64()))
        columns = [_column(field, _gathered(rows, place)) for place, field in enumerate(self._root.fields)]
        return pa.RecordBatch.from_arrays([*envelope.columns, *columns], schema=self._schema)

    def _masks(self, kept: pa.RecordBatch) -> list[tuple[pa.Array, str, str | None]]:
        found: list[tuple[pa.Array, str, str | None]] = []
        for field in self._root.fields:
            if (mask := _out_of_range(field, kept.column(field.column))) is not None:
                found.append((mask, "time out of range", f"$.{field.name}"))
        for each in self._quarantine:
            found.append((failing(each, kept), reason_of(each), each.columns[0]))
        return found


def _type_of(field: Field) -> Any:
    if field.kind == "object":
        attributes = [
            (f"f{number}", _type_of(each)) if each.required else (f"f{number}", _type_of(each), None)
            for number, each in enumerate(field.fields)
        ]
        found: Any = msgspec.defstruct(
            "Payload",
            attributes,
            rename={f"f{number}": each.name for number, each in enumerate(field.fields)},
            forbid_unknown_fields=field.closed,
            kw_only=True,
            gc=False,
        )
    elif field.item is not None:
        found = list[_type_of(field.item)]  # type: ignore[misc]
    else:
        found = _TYPES[field.kind]
    return found | None if field.nullable and field.name else found


def _gathered(rows: Sequence[Any], place: int) -> list[Any]:
    return list(map(attrgetter(f"f{place}"), rows))


def _column(field: Field, values: list[Any]) -> pa.Array:
    if field.kind != "object":
        return pa.array(values, field.arrow)
    nulls = pa.array([value is None for value in values], pa.bool_())
    children = []
    for place, each in enumerate(field.fields):
        get = attrgetter(f"f{place}")
        children.append(_column(each, [None if value is None else get(value) for value in values]))
    return pa.StructArray.from_arrays(children, fields=[each.arrow_field for each in field.fields], mask=nulls)


def _reason(error: Exception) -> tuple[str, str | None]:
    """Return the reason and the path of the field."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {text}", None
    at = _AT.search(text)
    path, text = (at["path"], text[: at.start()]) if at else ("$", text)
    if missing := _MISSING.search(text):
        path = f"{path}.{missing['name']}"
    return text, path


def _rejects(batch: pa.RecordBatch, rejected: dict[int, tuple[str, str | None]]) -> pa.RecordBatch:
    numbers = sorted(rejected)
    rows = batch.select(list(BODIES)).take(pa.array(numbers, pa.int64()))
    reasons = [pa.array([rejected[number][part] for number in numbers], pa.string()) for part in (0, 1)]
    return pa.RecordBatch.from_arrays([*rows.columns, *reasons], schema=QUARANTINE)


def _out_of_range(field: Field, values: pa.Array) -> pa.Array | None:
    """Return the rows with a time that readers cannot represent; None if there are none."""
    if field.kind == "date-time":
        us = values.cast(pa.int64())
        mask = pc.fill_null(pc.or_(pc.less(us, _FIRST_US), pc.greater_equal(us, _AFTER_US)), False)
    elif field.item is not None and field.item.kind == "date-time":
        inner = _out_of_range(field.item, values.flatten())
        if inner is None:
            return None
        bad = set(pc.list_parent_indices(values).filter(inner).to_pylist())
        mask = pa.array([number in bad for number in range(len(values))])
    elif field.kind == "object":
        masks = [_out_of_range(each, pc.struct_field(values, [each.column])) for each in field.fields]
        found = [each for each in masks if each is not None]
        if not found:
            return None
        mask = reduce(pc.or_, found)
    else:
        return None
    return mask if pc.any(mask).as_py() else None
