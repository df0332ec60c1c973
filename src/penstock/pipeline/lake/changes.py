"""What has changed in a table since an earlier version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.pipeline.lake.lake import LakeTable

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def digest_of(table: LakeTable) -> str:
    """Return a digest of the names of a version's files, which are unique: no version with other rows has the same."""
    return hashlib.sha256("\n".join(sorted(table.sizes())).encode()).hexdigest()


def changes_since(table: LakeTable, version: int, digest: str) -> tuple[ds.Dataset, ds.Dataset] | None:
    """Return the rows of the files removed and added since a version; None if that version is no longer there.

    After a backup of the lake was restored, another version can have the same number, but not the same digest.
    """
    before = LakeTable(table.folder, table.table)
    try:
        before.delta = DeltaTable(str(table.folder), version=version)
    except DeltaError:
        return None
    if digest_of(before) != digest:
        return None
    then, now = before.sizes(), table.sizes()
    removed = {path: size for path, size in then.items() if path not in now}
    return table.dataset_of(removed), table.dataset_of({path: size for path, size in now.items() if path not in then})
