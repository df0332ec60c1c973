"""Local folders as users write them."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.core.redact import without_password
from penstock.errors import InvalidInput


def local_path(given: Path | str, field: str) -> Path:
    """Return a local path, also for `file:///path`; reject other URLs, which `Path` would treat as folders."""
    path = without_file_scheme(str(given))
    if re.match(r"[A-Za-z][\w+.-]+:/", path):
        raise InvalidInput(
            f"{field} must be a local folder, not {without_password(str(given))!r}",
            field=field,
            hint="only a lake and the staging of a sink can be in object storage; mount it and pass the folder",
        )
    return Path(path)


def without_file_scheme(given: str) -> str:
    """Return the path of `file:/path` and `file:///path`, and anything else unchanged."""
    return re.sub(r"^file:(//)?(?=/(?!/))", "", given)
