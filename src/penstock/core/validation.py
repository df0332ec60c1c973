"""Turns validation errors of msgspec into Penstock errors with a reason and a field."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import msgspec.inspect

from penstock.errors import InvalidInput, WrongType


class ValidationProblem(NamedTuple):
    reason: str
    field: str | None
    kind: type[InvalidInput]


def parse_error(error: msgspec.ValidationError) -> ValidationProblem:
    """Parse a message like "Expected `int`, got `str` - at `$.priority`" or "Object contains unknown field `x`"."""
    reason, _, path = str(error).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").lstrip(".")
    if "field `" in reason:
        field = f"{field}.{reason.rpartition('field `')[2].rstrip('`')}".lstrip(".")
    kind = WrongType if ", got `" in reason else InvalidInput
    return ValidationProblem(reason[0].lower() + reason[1:], field or None, kind)


def known_fields(kind: Any, field: str | None) -> list[str]:
    """Return the names that a struct accepts at the level of an unknown `field`, such as `options.leaseTim`."""
    node: Any = msgspec.inspect.type_info(kind)
    for part in (field or "").split(".")[:-1]:
        fields = {each.encode_name: each.type for each in getattr(_struct_in(node), "fields", ())}
        node = fields.get(part.partition("[")[0])
    return [each.encode_name for each in getattr(_struct_in(node), "fields", ())]


def _struct_in(node: Any) -> Any:
    """Return the struct inside a type: itself, a member of a union, or the item of a list."""
    if isinstance(node, msgspec.inspect.UnionType):
        return next((found for each in node.types if (found := _struct_in(each)) is not None), None)
    if isinstance(node, msgspec.inspect.ListType):
        return _struct_in(node.item_type)
    return node if isinstance(node, msgspec.inspect.StructType) else None


def to_invalid_input(error: msgspec.ValidationError, what: str, struct: Any = None) -> InvalidInput:
    """Return the error to raise about an option or setting; with `struct`, the hint lists its known names."""
    reason, field, kind = parse_error(error)
    hint = None if struct is None else known_hint(error, struct)
    return kind(f"{what} {field}: {reason}" if field else reason, field=field, hint=hint)


def known_hint(error: msgspec.ValidationError, kind: Any) -> str | None:
    """Return a hint that lists the known names, for an unknown one."""
    _, field, _ = parse_error(error)
    if "unknown field" not in str(error) or not (known := known_fields(kind, field)):
        return None
    return f"known: {', '.join(sorted(known))}"
