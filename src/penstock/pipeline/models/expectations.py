"""Expectations: checks of a model's rows, written as `not_null(customer) stop` or `between(total, 0, 1000) warn`.

A failed `warn` is reported, `quarantine` moves the row to the model's quarantine table, and `stop` commits nothing and
ends the run with an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import InvalidInput

ACTIONS = ("warn", "quarantine", "stop")
# Checks of a single row; the others look at the whole table.
ROW_CHECKS = ("not_null", "between", "accepted")
TABLE_CHECKS = ("unique", "fresh")
_TEXT = re.compile(r"\s*(?P<check>\w+)\s*\((?P<arguments>.*)\)\s*(?P<action>\w*)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<word>[^\s,']+))\s*(?:,|$)")
_AGE = re.compile(r"(\d{1,6})(s|min|h|d)")
_SECONDS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_USAGE = "write not_null(c), unique(c), between(c, 0, 9), accepted(c, 'a', 'b') or fresh(c, 1h), then an action"


class Expectation(Struct, frozen=True):
    text: str
    """The check as written, without the action."""
    check: str
    columns: tuple[str, ...]
    values: tuple[Any, ...] = ()
    action: str = "warn"

    @property
    def age(self) -> timedelta:
        """The greatest age that `fresh` accepts."""
        found = _AGE.fullmatch(str(self.values[0]))
        assert found is not None
        return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


def expectation(text: str) -> Expectation:
    found = _TEXT.fullmatch(text)
    if found is None or found["check"] not in (*ROW_CHECKS, *TABLE_CHECKS):
        raise InvalidInput(f"{text!r} is not an expectation", hint=_USAGE)
    action = found["action"] or "warn"
    if action not in ACTIONS:
        raise InvalidInput(f"expectation {text!r}: unknown action {action!r}", hint=f"one of {', '.join(ACTIONS)}")
    check, arguments = found["check"], _arguments(text, found["arguments"])
    wanted = {"not_null": 1, "between": 3, "fresh": 2}.get(check)
    if not arguments or (wanted or len(arguments)) != len(arguments) or (check == "accepted" and len(arguments) < 2):
        raise InvalidInput(f"expectation {text!r}: wrong number of arguments", hint=_USAGE)
    named = len(arguments) if check == "unique" else 1
    columns, values = tuple(map(str, arguments[:named])), tuple(arguments[named:])
    if check == "fresh" and not _AGE.fullmatch(str(values[0])):
        raise InvalidInput(f"expectation {text!r}: {values[0]!r} is not an age such as 30min, 6h or 2d")
    if check in TABLE_CHECKS and action == "quarantine":
        raise InvalidInput(f"expectation {text!r}: {check} cannot quarantine a row", hint="use warn or stop")
    shown = f"{check}({found['arguments'].strip()})"
    return Expectation(shown, check, columns, values, action)


def _arguments(text: str, arguments: str) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(arguments):
        match = _ARGUMENT.match(arguments, at)
        if match is None:
            raise InvalidInput(f"expectation {text!r}: cannot read {arguments[at:]!r}", hint=_USAGE)
        at = match.end()
        found.append(_value(match["word"]) if match["text"] is None else match["text"].replace("''", "'"))
    return found


def _value(word: str) -> Any:
    try:
        return msgspec.json.decode(word, type=bool | int | float)
    except msgspec.DecodeError:
        return word


def check_columns(each: Expectation, columns: Mapping[str, pa.DataType]) -> None:
    """Raise if a column does not exist or has no such values."""
    for column in each.columns:
        if column not in columns:
            raise InvalidInput(f"expectation {each.text}: there is no column {column!r}", hint=", ".join(columns))
    kind = columns[each.columns[0]]
    if each.check == "fresh" and not pa.types.is_timestamp(kind):
        raise InvalidInput(f"expectation {each.text}: {each.columns[0]!r} is not a time")
    if each.check in ("between", "accepted"):
        _scalars(each, kind)


def _scalars(each: Expectation, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(list(each.values)).cast(kind) if not pa.types.is_nested(kind) else pa.array(each.values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(f"expectation {each.text}: the values are not of type {kind}") from error


def failing(each: Expectation, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return a mask of the rows that fail a check of single rows. Null passes all but `not_null`."""
    values = rows.column(each.columns[0])
    if each.check == "not_null":
        return pc.is_null(values)
    wanted = _scalars(each, values.type)
    if each.check == "between":
        outside = pc.or_(pc.less(values, wanted[0]), pc.greater(values, wanted[1]))
    else:
        outside = pc.invert(pc.is_in(values, value_set=wanted))
    return pc.and_(pc.is_valid(values), pc.fill_null(outside, False))


def reason_of(each: Expectation) -> str:
    """Return the reason that the quarantine table gives."""
    return f"expectation {each.text}"
