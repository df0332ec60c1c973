"""Finds segment files under a wrong name by their headers, and moves them to the right one."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from penstock.errors import Damaged
from penstock.log.check_report import DamageKind, Finding
from penstock.log.files import Files
from penstock.log.index import owner_in
from penstock.log.manifest import RESTORE, STREAM, Identity, load_manifest
from penstock.log.segment import INDEX, LOG, SUMS, Handle, file_name, firsts_in, index_header, lies_elsewhere, owners_of
from penstock.log.segment_header import Owner

# Suffix of a misplaced file that could not be moved to its own name.
ASIDE = ".aside"


def put_in_place(files: Files, folder: Path, identity: Identity, kept_from: int) -> list[Finding]:
    """Move misplaced segments to where they belong, or aside. The caller holds the lock.

    `kept_from` is the first retained offset.
    """
    misplaced = misplaced_in(folder, identity)
    if misplaced:
        check_identity(folder, identity)
    # Include files that a crash left aside half-way.
    asides = dict.fromkeys(sorted(folder.glob(f"*{LOG}{ASIDE}")))
    asides |= {_set_aside(files, folder, identity, first): None for first in misplaced}
    findings = []
    for aside in asides:
        name = aside.name[:20] + LOG
        home = _home_of(aside, identity)
        if home is not None and home >= kept_from and not (folder / file_name(home)).exists():
            _bring_home(files, folder, identity, aside, home)
            text = f"it held the records from offset {home} on, and was moved to its own name"
        elif int(aside.name[:20]) in misplaced:
            text = f"it belongs to another stream or offset, and is kept as {aside.name}"
        else:
            continue
        findings.append(Finding(trouble=DamageKind.MISPLACED, text=text, segment=name, repaired=True))
    if findings:
        files.sync_folder(folder)
    return findings


def misplaced_in(folder: Path, identity: Identity) -> list[int]:
    """Return the first offsets whose files belong to another segment."""
    return [first for first in firsts_in(folder) if lies_elsewhere(Handle(folder / file_name(first)), identity, first)]


def check_identity(folder: Path, identity: Identity) -> None:
    """Raise Damaged if all other files belong to one other stream: then the `stream` file is the misplaced one."""
    uids = uids_in(folder)
    if load_manifest(folder, identity.uid) is None and identity.uid not in uids and len(set(uids)) == 1:
        raise Damaged(
            f"{folder / STREAM} is another stream's: it has the id {identity.uid}, its segments have {uids[0]}",
            hint=RESTORE,
        )


def uids_in(folder: Path) -> list[int]:
    """Return the stream ids in the heads of the segments and indexes of a folder."""
    heads = [uid for first in firsts_in(folder) for uid, _ in owners_of(Handle(folder / file_name(first)))]
    owners = [_owner_of_index(folder / file_name(first, INDEX)) for first in firsts_in(folder, INDEX)]
    return heads + [owner[0] for owner in owners if owner is not None]


def _owner_of_index(path: Path) -> Owner | None:
    try:
        index = Handle(path)
    except FileNotFoundError:
        return None
    return owner_in(index.fd)


def _set_aside(files: Files, folder: Path, identity: Identity, first: int) -> Path:
    """Rename a misplaced file, and its index and sums if they came with it."""
    path = folder / file_name(first)
    home = _home_of(path, identity)
    came_with_it = home is not None and _owner_of_index(path.with_suffix(INDEX)) == (identity.uid, home)
    stems = (f"{path.stem}-{number}" for number in count(1))
    stem = next(stem for stem in stems if not (folder / f"{stem}{LOG}{ASIDE}").exists())
    for suffix in (INDEX, SUMS, LOG) if came_with_it else (LOG,):
        if path.with_suffix(suffix).exists():
            files.rename(path.with_suffix(suffix), folder / f"{stem}{suffix}{ASIDE}")
    return folder / f"{stem}{LOG}{ASIDE}"


def _bring_home(files: Files, folder: Path, identity: Identity, aside: Path, home: int) -> None:
    stem = aside.name.removesuffix(LOG + ASIDE)
    if index_header(folder, identity, home) is None:
        for suffix in (INDEX, SUMS):
            if (folder / f"{stem}{suffix}{ASIDE}").exists():
                files.rename(folder / f"{stem}{suffix}{ASIDE}", folder / file_name(home, suffix))
    files.rename(aside, folder / file_name(home))


def _home_of(path: Path, identity: Identity) -> int | None:
    """Return the offset that a segment's file belongs to; None if unknown or of another stream."""
    owners = owners_of(Handle(path))
    if not owners:
        # A file without a head is identified by its index.
        owner = _owner_of_index(path.with_name(path.name.replace(LOG, INDEX)))
        owners = {owner} if owner is not None and not identity.start_of(owner[1]) else set()
    homes = {first for uid, first in owners if uid == identity.uid}
    return homes.pop() if len(homes) == 1 else None
