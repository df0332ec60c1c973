"""The small files of a log: `stream` with its identity and options, and `manifest` with its state at a checkpoint.

Each is replaced atomically and ends in a checksum. The manifest is written on roll-over and at intervals. It saves a
scan on opening, and it proves that a tail or a segment has vanished, so two copies are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from penstock.core.options import encode_options
from penstock.errors import CannotOpen, Damaged
from penstock.log.files import Files, replace
from penstock.log.model import StreamOptions
from penstock.log.record import crc32
from penstock.log.segment_header import HEAD_BYTES, Owner

STREAM = "stream"
MANIFEST = "manifest"
MANIFEST_COPY = "manifest.copy"
VERSION = 1
# Version of a stream whose newer segments have a head. 0.1.0 refuses to open it.
HEADED_VERSION = 2
RESTORE = "`penstock stream repair` restores it from the segments"
T = TypeVar("T")


class Identity(Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    """Random, and in every segment and index, so that a file of another stream is recognised."""
    created_ms: int
    options: StreamOptions
    version: int = VERSION
    headed_from: int | None = None
    """Segments that begin at this offset or later have a head; None if none has."""

    def start_of(self, first: int) -> int:
        """Return where the records of a segment begin in its file."""
        return HEAD_BYTES if self.headed_from is not None and first >= self.headed_from else 0

    def owner_of(self, first: int) -> Owner:
        return self.uid, first


class _Stored(Struct, kw_only=True):
    """An `Identity` with its options as they are written."""

    name: str
    uid: int
    created_ms: int
    options: msgspec.Raw
    version: int = VERSION
    headed_from: int | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """State of a log at a checkpoint: the retained offsets, and the active segment with its index."""

    first: int = 0
    next: int = 0
    active: int = 0
    count: int = 0
    bytes: int = 0
    ends_sum: int = 0
    version: int = VERSION
    uid: int = 0
    """Id of the stream; 0 in a manifest of 0.1.0."""


def save(files: Files, path: Path, value: Struct) -> None:
    data = msgspec.json.encode(value)
    replace(files, path, b"%s\n%08x\n" % (data, crc32(data)))


def save_identity(files: Files, folder: Path, identity: Identity) -> None:
    """Write the `stream` file; options that only a newer version knows stay in it."""
    path = folder / STREAM
    try:
        stored = _load(path, _stored).options
    except (FileNotFoundError, ValueError):
        stored = msgspec.Raw(b"{}")
    options = encode_options(identity.options, bytes(stored).decode())
    save(files, path, _Stored(**msgspec.structs.asdict(identity) | {"options": msgspec.Raw(options.encode())}))


def save_manifest(files: Files, folder: Path, manifest: Manifest) -> None:
    # Write the copy first: if a crash between the two loses the manifest, its copy is the newer one.
    save(files, folder / MANIFEST_COPY, manifest)
    save(files, folder / MANIFEST, manifest)


def with_heads(files: Files, folder: Path, identity: Identity, first: int) -> Identity:
    """Record that segments from this offset on have heads, unless that is recorded already."""
    if identity.headed_from is None:
        identity = msgspec.structs.replace(identity, version=HEADED_VERSION, headed_from=first)
        save_identity(files, folder, identity)
    return identity


# Created at import: msgspec crashes if two threads are the first to decode the same nested type.
_identity = msgspec.json.Decoder(Identity)
_stored = msgspec.json.Decoder(_Stored)
_manifest = msgspec.json.Decoder(Manifest)


def _load(path: Path, decoder: msgspec.json.Decoder[T]) -> T:
    """Load a file; raise ValueError if its checksum or content is wrong."""
    data, _, checksum = path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
    if checksum != b"%08x" % crc32(data):
        raise ValueError("wrong checksum")
    return decoder.decode(data)


def load_identity(folder: Path) -> Identity:
    path = folder / STREAM
    try:
        identity = _load(path, _identity)
    except FileNotFoundError as error:
        if next(folder.glob("*.log"), None) is not None:
            raise Damaged(f"{path} is missing", hint=RESTORE) from error
        raise CannotOpen(f"there is no log in {folder}") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}", hint=RESTORE) from error
    if identity.version > HEADED_VERSION:
        raise CannotOpen(f"{path} was written by a newer version of Penstock")
    return identity


def load_manifest(folder: Path, uid: int) -> Manifest | None:
    """Return the manifest, or its copy; None if both are missing, damaged or another stream's."""
    return load_one_manifest(folder / MANIFEST, uid) or load_one_manifest(folder / MANIFEST_COPY, uid)


def load_one_manifest(path: Path, uid: int) -> Manifest | None:
    try:
        manifest = _load(path, _manifest)
    except (FileNotFoundError, ValueError):
        return None
    return manifest if manifest.uid in (0, uid) else None
