"""The fields of a typed model, read from a JSON Schema.

The supported subset maps to columns without loss: objects with properties of type string, integer, number and boolean,
strings of format date-time, nested objects, and arrays of scalars. Other assertions are refused, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import Conflict, InvalidInput
from penstock.journal.arrow import TIME

MAX_FIELDS = 1_000
MAX_DEPTH = 16
SCALARS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "date-time": TIME,
}
_KINDS = ["string", "integer", "number", "boolean", "object", "array"]
# Keywords that only describe.
_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items"},
    "string": {"format"},
}
_NOT_IN_COLUMNS = re.compile(r"[^A-Za-z0-9_]")


class Field(Struct, frozen=True):
    """A property of the payload, and its column."""

    name: str
    column: str
    kind: str
    """A key of SCALARS, `object` or `array`."""
    required: bool = False
    nullable: bool = True
    about: str = ""
    fields: tuple[Field, ...] = ()
    closed: bool = False
    """True if an object must not have other properties."""
    item: Field | None = None

    @property
    def arrow(self) -> pa.DataType:
        if self.kind == "object":
            return pa.struct([each.arrow_field for each in self.fields])
        if self.item is not None:
            return pa.list_(self.item.arrow)
        return SCALARS[self.kind]

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.column, self.arrow, metadata={"comment": self.about} if self.about else None)


def fields_of(schema: Any, *, reserved: frozenset[str] = frozenset()) -> Field:
    """Return the root object of a JSON Schema. A property whose name is `reserved` gets the column `payload_<name>`."""
    root = _field("$", "", schema, 0, reserved=reserved)
    if root.kind != "object":
        raise _wrong("$", f"expected an object with properties, got {root.kind}")
    if _count(root) > MAX_FIELDS:
        raise InvalidInput(f"the schema has {_count(root)} fields; at most {MAX_FIELDS} are allowed")
    return root


def _field(
    path: str, name: str, schema: Any, depth: int, *, required: bool = False, reserved: frozenset[str] = frozenset()
) -> Field:
    if not isinstance(schema, Mapping):
        raise _wrong(path, f"expected an object with a type, got {type(schema).__name__}")
    if depth > MAX_DEPTH:
        raise _wrong(path, f"objects may be nested at most {MAX_DEPTH} deep")
    kind, has_null = _kind(path, schema)
    unknown = schema.keys() - _NOTES - {"type"} - _KEYWORDS.get("string" if kind == "date-time" else kind, set())
    if unknown:
        raise _wrong(path, f"unsupported keyword {min(unknown)!r}", "use an expectation to check values")
    if schema.get("additionalProperties", True) not in (True, False):
        raise _wrong(path, "additionalProperties must be true or false")
    return Field(
        name=name,
        column=_NOT_IN_COLUMNS.sub("_", name),
        kind=kind,
        required=required,
        nullable=has_null or not required,
        about=str(schema.get("description") or schema.get("title") or ""),
        fields=_properties(path, schema, depth, reserved) if kind == "object" else (),
        closed=schema.get("additionalProperties") is False,
        item=_item(path, schema, depth) if kind == "array" else None,
    )


def _kind(path: str, schema: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the type, and whether null is allowed."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    named = [kind for kind in kinds if kind != "null"]
    if (
        len(named) != 1
        or not isinstance(named[0], str)
        or named[0] not in {*SCALARS, "object", "array"} - {"date-time"}
    ):
        raise _wrong(path, f"unsupported type {given!r}", "one of string, integer, number, boolean, object and array")
    kind = named[0]
    if kind == "string" and schema.get("format") == "date-time":
        kind = "date-time"
    return kind, len(named) < len(kinds)


def _properties(path: str, schema: Mapping[str, Any], depth: int, reserved: frozenset[str]) -> tuple[Field, ...]:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or not properties:
        raise _wrong(path, "an object needs properties")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise _wrong(path, "required must be a list of names")
    if missing := [each for each in required if each not in properties]:
        raise _wrong(path, f"required property {missing[0]!r} is not among the properties")
    fields = []
    names: dict[str, str] = {}
    for name, each in properties.items():
        if not name:
            raise _wrong(path, "a property needs a name")
        field = _field(f"{path}.{name}", name, each, depth + 1, required=name in required)
        if field.column.lower() in reserved:
            field = replace(field, column=f"payload_{field.column}")
        # Spark does not distinguish upper and lower case in names.
        if other := names.get(field.column.lower()):
            raise _wrong(path, f"properties {other!r} and {name!r} would both be column {field.column!r}")
        names[field.column.lower()] = name
        fields.append(field)
    return tuple(fields)


def _item(path: str, schema: Mapping[str, Any], depth: int) -> Field:
    items = schema.get("items")
    if not isinstance(items, Mapping):
        raise _wrong(path, "an array needs items")
    found = _field(f"{path}[]", "item", items, depth + 1, required=True)
    if found.kind not in SCALARS:
        raise _wrong(path, f"arrays of {found.kind}s are not supported", "only arrays of scalars are")
    return found


def widened(old: Field, new: Field, path: str = "$") -> None:
    """Raise unless every payload that fits the old schema fits the new one, with the same values in its columns."""
    if old.kind != new.kind:
        raise _incompatible(path, f"its type changed from {old.kind} to {new.kind}")
    if old.item is not None and new.item is not None:
        widened(old.item, new.item, f"{path}[]")
    if old.nullable and not new.nullable:
        raise _incompatible(path, "it became required")
    if new.closed and not old.closed:
        raise _incompatible(path, "additionalProperties became false")
    after = {field.name: field for field in new.fields}
    for field in old.fields:
        if field.name not in after:
            raise _incompatible(f"{path}.{field.name}", "it was removed")
        widened(field, after.pop(field.name), f"{path}.{field.name}")
    for field in after.values():
        if field.required:
            raise _incompatible(f"{path}.{field.name}", "a new property must be optional")
        if path != "$":
            raise _incompatible(f"{path}.{field.name}", "a nested object got a new property")


def _incompatible(path: str, what: str) -> Conflict:
    return Conflict(
        f"the new schema does not extend the old one: {path}: {what}",
        hint="use `penstock pipeline model rebuild` with the new schema, which recomputes the table",
    )


def _count(field: Field) -> int:
    return 1 + sum(map(_count, field.fields))


def _wrong(path: str, what: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"schema, {path}: {what}", hint=hint)
