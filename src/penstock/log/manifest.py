"""Two small files of a log: `stream`, which says what it is, and `manifest`, which says how far it had come.

Both are replaced whole and end in a checksum. The manifest is renewed on roll-over and at intervals: it spares
opening a scan, and it is the witness when a tail or a segment has vanished.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import CannotOpen, Damaged
from penstock.log.files import Files, replace
from penstock.log.model import StreamOptions
from penstock.log.record import crc32
from penstock.options import encode_options

STREAM = "stream"
MANIFEST = "manifest"
VERSION = 1
T = TypeVar("T")


class Identity(Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    """Drawn once; stands in every index, so that one from elsewhere is known for what it is."""
    created_ms: int
    options: StreamOptions
    version: int = VERSION


class _Stored(Struct, kw_only=True):
    """An `Identity` with its options as they are written."""

    name: str
    uid: int
    created_ms: int
    options: msgspec.Raw
    version: int = VERSION


class Manifest(Struct, frozen=True, kw_only=True):
    """As of one moment: what is kept, and what was in the active segment and its index."""

    first: int = 0
    next: int = 0
    active: int = 0
    count: int = 0
    bytes: int = 0
    ends_sum: int = 0
    version: int = VERSION


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


# Made here: threads that decode a nested type first, together, crash msgspec.
_identity = msgspec.json.Decoder(Identity)
_stored = msgspec.json.Decoder(_Stored)
_manifest = msgspec.json.Decoder(Manifest)


def _load(path: Path, decoder: msgspec.json.Decoder[T]) -> T:
    """ValueError if it is not what was saved."""
    data, _, checksum = path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
    if checksum != b"%08x" % crc32(data):
        raise ValueError("its checksum is wrong")
    return decoder.decode(data)


def load_identity(folder: Path) -> Identity:
    path = folder / STREAM
    try:
        identity = _load(path, _identity)
    except FileNotFoundError as error:
        raise CannotOpen(f"there is no log in {folder}") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}", hint="`penstock stream repair` makes it anew") from error
    if identity.version != VERSION:
        raise CannotOpen(f"{path} was written by a newer version of Penstock")
    return identity


def load_manifest(folder: Path) -> Manifest | None:
    """None if it is missing or damaged: then all that it could tell is found by scanning."""
    try:
        return _load(folder / MANIFEST, _manifest)
    except (FileNotFoundError, ValueError):
        return None
