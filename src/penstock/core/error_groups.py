"""Groups errors that differ only in numbers, ids and quoted values, so that many dead letters read as a few causes."""

from __future__ import annotations

import re

from penstock.core.commands import Redrive

ERROR_SHOWN_MAX = 2_000
ERROR_READ_MAX = 2 * ERROR_SHOWN_MAX
_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|'[^']*'|\"[^\"]*\"|\d+")


def error_group(error: str) -> str:
    """Return the name of an error's group: its text with the varying parts replaced by `#`."""
    return _VARYING.sub("#", error[:ERROR_READ_MAX])[:ERROR_SHOWN_MAX]


def is_wanted(command: Redrive, error: str) -> bool:
    """Return True if a redrive selects dead letters with this error."""
    if command.error_contains is not None and command.error_contains not in error:
        return False
    return command.groups is None or error_group(error) in command.groups
