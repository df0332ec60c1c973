"""Finds the installed distributions of a lock file."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "requirements"


def distributions(lock: str) -> list[metadata.Distribution]:
    """Return the distributions sorted by name, without those whose marker excludes this machine."""
    found: dict[str, metadata.Distribution] = {}
    for name, marker in re.findall(r"^([\w.-]+)==[^ ;]+( ; )?", (FOLDER / lock).read_text("utf-8"), re.MULTILINE):
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not marker:
                raise SystemExit(f"{name}, locked in {lock}, is not installed") from None
    return sorted(found.values(), key=lambda each: each.name.lower())
