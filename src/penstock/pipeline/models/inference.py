"""Infers a schema from message bodies, as a start for the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pyarrow.compute as pc

from penstock.errors import NotFound
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.models.fields import MAX_DEPTH

_Time = Annotated[datetime, msgspec.Meta(tz=True)]


def infer(lake: Lake, queue: str, count: int) -> dict[str, Any]:
    """Return the schema of the first bodies of a queue: every property that occurs, with its most frequent type."""
    wanted = (pc.field("kind") == "pushed") & (pc.field("queue") == queue) & pc.field("body").is_valid()
    bodies = lake[BRONZE].dataset().scanner(columns=["body"], filter=wanted).head(count)["body"].to_pylist()
    values = [value for value in map(_decoded, bodies) if isinstance(value, dict)]
    if not values:
        raise NotFound(
            f"the lake has no JSON objects from queue {queue!r}", hint="run `penstock pipeline run`, or use --schema"
        )
    return _object(values, 0)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _object(values: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name in dict.fromkeys(name for value in values for name in value if name):
        found = _schema([value[name] for value in values if value.get(name) is not None], depth + 1)
        if found is not None:
            properties[name] = found
    return {"type": "object", "properties": properties}


def _schema(values: Sequence[Any], depth: int) -> dict[str, Any] | None:
    """Return the schema of these values; None if they have no type that a column can have."""
    kinds = Counter(map(_kind, values))
    if not kinds or depth > MAX_DEPTH:
        return None
    kind = kinds.most_common(1)[0][0]
    if kind in ("integer", "number") and kinds["number"]:
        kind = "number"
    chosen = [value for value in values if _kind(value) == kind]
    if kind == "object":
        inner = _object(chosen, depth)
        return inner if inner["properties"] else None
    if kind == "array":
        items = _schema([item for value in chosen for item in value if item is not None], depth + 1)
        if items is None or items["type"] in ("object", "array"):
            return None
        return {"type": "array", "items": items | {"type": [items["type"], "null"]}}
    if kind == "date-time":
        return {"type": "string", "format": kind} if kinds["string"] == 0 else {"type": "string"}
    return {"type": kind}


def _kind(value: Any) -> str:
    if isinstance(value, str):
        try:
            msgspec.convert(value, _Time)
        except msgspec.ValidationError:
            return "string"
        return "date-time"
    return {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}[type(value)]
