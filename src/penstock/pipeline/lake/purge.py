"""Deletes all but the newest version of a table: data files, and the log that tells about them.

Files are found by listing the folder and not by their age, so that no clock decides what stays. Nothing may write to
the table meanwhile, because files that are not committed yet are deleted as well.
"""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import StoreError
from penstock.pipeline.lake.lake import LakeTable
from penstock.pipeline.lake.storage import delete_files, files_in, missing_file, store_errors

PURGED = "penstock.purged"
LOG = "_delta_log/"
VERSION_DIGITS = 20


def purge(table: LakeTable) -> None:
    """Delete every file that the newest version does not need. Readers of older versions fail."""
    # A commit without rows, so that the log can begin with it: others may have statistics of removed files.
    table.set_property(PURGED, datetime.now(UTC).isoformat(timespec="seconds"))
    with store_errors(f"purging {table.folder}"):
        table.delta.create_checkpoint()
    first, present, found = table.delta.version(), table.sizes(), files_in(table.folder)
    missing = next(iter(present.keys() - set(found)), None)
    if missing is not None:
        raise missing_file(table.table.name, missing)
    if not any(name.startswith(f"{LOG}{first:0{VERSION_DIGITS}}.checkpoint") for name in found):
        raise StoreError(f"the log of {table.table.name} has no checkpoint of version {first}", hint="run it again")
    unused = [name for name in found if not _is_needed(name, first) and name not in present]
    # Data first: an older version whose log is gone could not name its files any more.
    delete_files(table.folder, sorted(unused, key=lambda name: name.startswith(LOG)))


def _is_needed(name: str, first: int) -> bool:
    """Return True if a file belongs to the log since a version."""
    if not name.startswith(LOG):
        return False
    version = name.removeprefix(LOG)[:VERSION_DIGITS]
    return name == f"{LOG}_last_checkpoint" or (version.isdecimal() and int(version) >= first)
