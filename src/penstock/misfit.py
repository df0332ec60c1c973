"""What msgspec says of a value that does not fit, taken apart: the reason, the field, and which error of ours it is."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.errors import InvalidInput, WrongType


class Misfit(NamedTuple):
    reason: str
    field: str | None
    kind: type[InvalidInput]


def misfit(error: msgspec.ValidationError) -> Misfit:
    """It says "Expected `int`, got `str` - at `$.priority`", or "Object contains unknown field `x`"."""
    reason, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").lstrip(".")
    if "field `" in reason:
        field = f"{field}.{reason.rpartition('field `')[2].rstrip('`')}".lstrip(".")
    kind = WrongType if ", got `" in reason else InvalidInput
    return Misfit(reason[0].lower() + reason[1:], field or None, kind)


def refusal(error: msgspec.ValidationError, what: str) -> InvalidInput:
    """Of an option, or a setting."""
    reason, field, kind = misfit(error)
    return kind(f"{what} {field}: {reason}" if field else reason, field=field)
