"""Masks fields of payloads on the way to bronze, so that the lake never contains their values.

The masks are a property of bronze.events: a later run cannot forget them. A mask is a path such as `$.card`,
`$.customer.email` or `$.items[*].card`, for all queues or, as `orders:$.card`, for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.pipeline.lake.lake import LakeTable

PROPERTY = "penstock.masks"
MASKED = "***"
# In `details` of a push whose body could not be masked, and is therefore left out.
DROPPED = "body_dropped"
MASKS_MAX = 1_000
_PATH = re.compile(r"\$((?:\.[^.\[\]\s\"'\\]+|\[\*\])+)")
_STEP = re.compile(r"\.([^.\[]+)|\[\*\]")
# Decimals keep numbers as they were written.
_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Masks(Struct, frozen=True):
    """The masks of a lake."""

    paths: tuple[str, ...] = ()
    keep_other: bool = False
    """Keep bodies that are not JSON, rather than leave them out."""

    def __bool__(self) -> bool:
        return bool(self.paths)


def stored_masks(bronze: LakeTable) -> Masks:
    """Return the masks of a lake; none if it has none."""
    text = bronze.properties().get(PROPERTY)
    return Masks() if text is None else msgspec.json.decode(text, type=Masks)


def add_masks(bronze: LakeTable, paths: Sequence[str], keep_other: bool | None = None) -> Masks:
    """Store more masks with the lake. They apply to what is added from now on."""
    known = stored_masks(bronze)
    for path in paths:
        parse_mask(path)
    masks = Masks(tuple(dict.fromkeys((*known.paths, *paths))), known.keep_other if keep_other is None else keep_other)
    if len(masks.paths) > MASKS_MAX:
        raise InvalidInput(f"too many masks ({len(masks.paths)})", field="mask", hint=f"use at most {MASKS_MAX}")
    if masks != known:
        bronze.set_property(PROPERTY, msgspec.json.encode(masks).decode())
    return masks


def parse_mask(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the queue, None for all, and the steps of a mask; `*` is every item of a list."""
    queue, colon, path = text.rpartition(":$")
    path = f"${path}" if colon else text
    found = _PATH.fullmatch(path)
    if found is None or (colon and not queue):
        raise InvalidInput(
            f"invalid mask {text!r}", field="mask", hint="use $.field, $.field.field, $.list[*].field or QUEUE:$.field"
        )
    # A list's step is the pattern that found nothing to name.
    steps = tuple(step[1] or "" for step in _STEP.finditer(found[1]))
    return queue or None, steps


class Masker:
    """Masks batches of events. Each task has its own."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks

    @cached_property
    def _by_queue(self) -> dict[str | None, list[tuple[str, ...]]]:
        found: dict[str | None, list[tuple[str, ...]]] = {}
        for text in self._masks.paths:
            queue, steps = parse_mask(text)
            found.setdefault(queue, []).append(steps)
        return found

    def paths_for(self, queue: str) -> list[tuple[str, ...]]:
        return self._by_queue.get(None, []) + self._by_queue.get(queue, [])

    def mask(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._mask(batch)

    def _mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Only pushes have bodies, keys and headers.
        pushed = pc.equal(batch["kind"], "pushed")
        if None not in self._by_queue:
            pushed = pc.and_(pushed, pc.is_in(batch["queue"], pa.array([*self._by_queue], pa.string())))
        rows = pc.indices_nonzero(pushed)
        if len(rows) == 0:
            return batch
        touched = batch.take(rows)
        bodies: list[bytes | None] = []
        details: list[str | None] = []
        columns = (touched[name].to_pylist() for name in ("queue", "content", "body", "details"))
        paths_of = {queue: self.paths_for(queue) for queue in touched["queue"].unique().to_pylist()}
        for queue, content, body, detail in zip(*columns, strict=True):
            paths = paths_of[queue]
            masked, is_json = mask_body(body, paths, is_json=content == "json")
            dropped = not is_json and not self._masks.keep_other
            bodies.append(None if dropped else masked)
            details.append(mask_detail(detail, paths, dropped))
        for name, values in (("body", bodies), ("details", details)):
            place = batch.schema.get_field_index(name)
            type_ = batch.schema.field(name).type
            batch = batch.set_column(
                place,
                batch.schema.field(name),
                pc.replace_with_mask(batch[name], pushed, pa.array(values, type_)),
            )
        return batch


def mask_body(body: bytes | None, paths: Sequence[Sequence[str]], *, is_json: bool) -> tuple[bytes | None, bool]:
    """Return the masked body, and True unless it is not JSON. One in which no path can match stays as it is."""
    if not body:
        return body, True
    # Without an escape, a key can only be there as it is written. This spares parsing most bodies.
    if is_json and b"\\" not in body and not any(_may_match(body, path) for path in paths):
        return body, True
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body, False
    # Encoded again even if no path matches: of a key that is there twice, parsing keeps the last.
    return _encode(_masked(value, paths)), True


def _may_match(body: bytes, path: Sequence[str]) -> bool:
    return all(f'"{step}"'.encode() in body for step in path if step)


def mask_detail(detail: str | None, paths: Sequence[Sequence[str]], dropped: bool) -> str | None:
    """Mask the headers in an event's details, as if they were a payload, and note that a body was dropped."""
    if detail is None and not dropped:
        return None
    found: dict[str, Any] = {} if detail is None else _decode(detail.encode())
    if "headers" in found:
        found["headers"] = _masked(found["headers"], paths)
    if dropped:
        found[DROPPED] = True
    return _encode(found).decode()


def _masked(value: Any, paths: Sequence[Sequence[str]]) -> Any:
    for path in paths:
        value = _masked_at(value, path)
    return value


def _masked_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value with everything at a path replaced. A path is short, so recursion is bounded by it."""
    if not path:
        return MASKED
    step, rest = path[0], path[1:]
    if step == "" and isinstance(value, list):
        return [_masked_at(item, rest) for item in value]
    if step and isinstance(value, dict) and step in value:
        return {**value, step: _masked_at(value[step], rest)}
    return value
