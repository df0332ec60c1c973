"""Locations of a lake: a local folder, or a folder of an object store or HDFS, given as a URL.

Data files go through the store of delta-rs, which also makes the commits: so there is one set of credentials, settings
and retries, and it needs no JVM. A file of an object store is durable when the put is answered; only local files are
fsynced. Nothing here is imported before it is used, because the server reads lakes without these packages as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.core.paths import without_file_scheme
from penstock.core.redact import without_password, without_secrets
from penstock.errors import CannotOpen, InvalidInput, PenstockError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import FileSystem

LOCK = "lock"
# The schemes of users, and those that delta-rs understands.
SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfss",
    "abfss": "abfss",
    "hdfs": "hdfs",
}
# In these, the part before the @ is a container, not a user.
CONTAINERS = ("abfss",)
REASON_LETTERS_MAX = 500
BATCH_ROWS = 64 << 10
_URL = re.compile(r"([A-Za-z][\w+.-]+):/")


class RemoteFolder(Struct, frozen=True):
    """A folder of an object store. It travels to Spark's tasks without credentials: each machine has its own."""

    url: str

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def joinpath(self, *names: str) -> RemoteFolder:
        return RemoteFolder("/".join((self.url, *names)))

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> RemoteFolder:
        return RemoteFolder(self.url.rpartition("/")[0])

    def files(self, sizes: Mapping[str, int] | None = None) -> FileSystem:
        """Return the store as a file system of Arrow whose paths begin in this folder. Known sizes save requests."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        with store_errors(f"opening {self.url}"):
            return PyFileSystem(DeltaStorageHandler(self.url, {}, dict(sizes or {})))


Folder = Path | RemoteFolder


def folder_at(given: Folder | str, field: str = "lake") -> Folder:
    """Return the folder of a path or URL as users write it."""
    if isinstance(given, RemoteFolder):
        return given
    path = without_file_scheme(str(given))
    found = _URL.match(path)
    if not found:
        return Path(path)
    scheme = SCHEMES.get(found[1].lower())
    shown = without_password(path)
    if scheme is None:
        raise InvalidInput(
            f"unsupported URL {shown!r}",
            field=field,
            hint="use a local folder, s3://bucket/path, gs://bucket/path, abfss://container@account.dfs.core.windows.net"
            "/path or hdfs://host:port/path",
        )
    try:
        parts = urlsplit(path)
    except ValueError as error:
        hint = f"use {scheme}://bucket/path"
        raise InvalidInput(f"{shown!r} is not a URL: {error}", field=field, hint=hint) from None
    user, at, host = parts.netloc.rpartition("@")
    if parts.query or parts.fragment or ":" in user or (at and scheme not in CONTAINERS):
        raise InvalidInput(
            f"{field} must be a URL without credentials and options, not {shown!r}",
            field=field,
            hint="credentials come from the environment, a profile or the machine's role, as for other tools",
        )
    if not host:
        raise InvalidInput(f"the URL {shown!r} names no bucket", field=field, hint=f"use {scheme}://bucket/path")
    return RemoteFolder(f"{scheme}://{parts.netloc}{parts.path}".rstrip("/"))


def make(folder: Folder) -> None:
    """Create a local folder; object stores have none."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def logs_of(lake: Folder) -> Path:
    """Return the folder of Spark's logs: in the lake, or on this machine for a lake in an object store."""
    if isinstance(lake, Path):
        return lake / "logs"
    from penstock.pipeline.runtime.java import cache_folder

    return cache_folder() / "logs" / re.sub(r"\W+", "-", lake.url)


class Lock(Protocol):
    def close(self) -> None: ...


class _NoLock:
    def close(self) -> None:
        pass


def lock_of(folder: Folder) -> Lock:
    """Take the lock of a local lake; object stores have none."""
    if isinstance(folder, RemoteFolder):
        return _NoLock()
    from penstock.log.files import FolderLock

    folder.mkdir(parents=True, exist_ok=True)
    return FolderLock(folder / LOCK)


class NewObject:
    """A file to write. Local files are fsynced when closed; others are complete when their store has answered."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.target: Any
        """A path, or a file of Arrow."""
        self._output: _Output | None = None
        if isinstance(folder, Path):
            self.target = folder / name
        else:
            import pyarrow as pa

            self._output = _Output(folder, name)
            self.target = pa.PythonFile(self._output, mode="w")

    def close(self) -> int:
        """Return the size of the file, which is durable from now on."""
        if self._output is not None:
            self.target.close()
            return self._output.bytes
        fd = os.open(self.target, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            os.fdatasync(fd)
        finally:
            os.close(fd)
        return size


class _Output:
    """A new object as a Python file. The store's own takes only bytes, where Arrow may pass a buffer."""

    closed = False

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        self._what = f"writing {folder}/{name}"
        with store_errors(self._what):
            self._stream = folder.files().handler._handler.open_output_stream(name, None)
        self.bytes = 0

    def write(self, data: Any) -> int:
        content = bytes(data)
        with store_errors(self._what):
            self._stream.write(content)
        self.bytes += len(content)
        return len(content)

    def flush(self) -> None:
        """Do nothing: an object appears when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with store_errors(self._what):
                self._stream.close()


def read_object(folder: RemoteFolder, name: str) -> bytes | None:
    """Return the content of a small object; None if it does not exist."""
    with store_errors(f"reading {folder}/{name}"):
        try:
            with folder.files().open_input_file(name) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None


def write_object(folder: RemoteFolder, name: str, content: bytes) -> None:
    """Create or replace an object atomically."""
    output = _Output(folder, name)
    output.write(content)
    output.close()


def remove_objects(folder: RemoteFolder) -> None:
    """Remove all objects of a folder."""
    delete_files(folder, files_in(folder))


def files_in(folder: Folder) -> list[str]:
    """Return the paths of all files below a folder, within it."""
    if isinstance(folder, Path):
        return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    from pyarrow.fs import FileSelector, FileType

    with store_errors(f"listing {folder}"):
        found = folder.files().get_file_info(FileSelector("", allow_not_found=True, recursive=True))
    return [each.path for each in found if each.type == FileType.File]


def delete_files(folder: Folder, names: Sequence[str]) -> None:
    if isinstance(folder, Path):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        return
    files = folder.files()
    for name in names:
        with store_errors(f"removing {folder}/{name}"):
            files.delete_file(name)


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Convert errors of a remote store to typed ones of one line, without secrets."""
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    try:
        yield
    except (PenstockError, FileNotFoundError, CommitFailedError, TableNotFoundError):
        raise
    except (OSError, DeltaError) as error:
        raise StoreError(f"{what}: {reason_in(error)}", hint="check the URL, the credentials and the network") from None


def read_batches(
    dataset: ds.Dataset, columns: list[str], where: ds.Expression | None = None, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read a dataset. Of an object store, a missing file is found only here."""
    with _reading():
        yield from dataset.to_batches(columns=columns, filter=where, batch_size=rows)


def read_table(dataset: ds.Dataset, columns: list[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
    with _reading():
        return dataset.to_table(columns=columns, filter=where)


@contextmanager
def _reading() -> Iterator[None]:
    with store_errors("reading the lake"):
        try:
            yield
        except FileNotFoundError as error:
            raise missing_file("the lake", reason_in(error)) from error


def missing_file(what: str, file: str) -> CannotOpen:
    return CannotOpen(
        f"{what} is missing the file {file}",
        hint="if `penstock pipeline compact` has just removed it, try again; otherwise restore the file, or rebuild"
        " the lake with `penstock pipeline run` and a new --lake",
    )


def reason_in(error: BaseException) -> str:
    """Return what an error of delta-rs says on one line, without terminal colours and secrets."""
    text = re.sub(r"\x1b\[[\d;]*m|↳", "", str(error))
    # Of S3's answers only the code and the message: other elements repeat a session token or a signature.
    text = re.sub(r"<(?!Code>|Message>|/)[^<>]*>[^<]*|</[^<>]*>|<(?:Code|Message)>", " ", text)
    text = re.sub(r"\?\S*", "", text)  # Queries may hold signatures.
    return without_secrets(" ".join(text.split()))[:REASON_LETTERS_MAX]
