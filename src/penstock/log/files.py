"""All operations that change files, in one place, so that tests can inject faults."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import CannotOpen, DiskFull, PenstockError, ReadOnly, StoreBusy, StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
# Other users of the machine must not read messages.
PRIVATE = 0o600
PRIVATE_FOLDER = 0o700


class Files:
    """Write operations on files. File descriptors are plain numbers; reads do not go through this class."""

    def open(self, path: Path) -> int:
        """Open a file for reading and writing; create it if it does not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all data at a position."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, position)
            view, position = view[written:], position + written

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Fsync a folder, so that created, removed and renamed files survive a power failure."""
        sync_path(folder)

    def close(self, fd: int) -> None:
        os.close(fd)


DISK = Files()
# A reader may hold the lock briefly to recover from a crash.
PATIENCE_S = 0.2


def sync_path(path: Path) -> None:
    """Fsync a file or a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents durably."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode, exist_ok=True)
        sync_path(each.parent)
    folder.mkdir(mode, parents=True, exist_ok=True)


def replace(files: Files, path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    beside = path.with_name(path.name + ".new")
    fd = files.open(beside)
    try:
        files.truncate(fd, 0)
        files.write(fd, data, 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(beside, path)
    files.sync_folder(path.parent)


@contextlib.contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Convert OSError to a StoreError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise as_typed(error, what) from error


def as_typed(error: OSError, what: str) -> StoreError:
    text = f"{what}: {error.strerror or error}"
    if error.errno in _FULL:
        return DiskFull(text, hint="the request was not stored; free some space and try again")
    if error.errno in _READ_ONLY:
        return ReadOnly(text)
    return StoreError(text)


class FolderLock:
    """An exclusive lock among all processes; the kernel releases it when the process ends."""

    _locked = False

    def __init__(self, path: Path, *, wait: bool = False, patience_s: float = PATIENCE_S) -> None:
        try:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise CannotOpen(f"cannot open {path}: {error.strerror}") from error
        deadline = time.monotonic() + patience_s
        try:
            while not self._try(wait) and time.monotonic() < deadline:
                time.sleep(0.005)
            if not self._locked:
                raise BlockingIOError(errno.EAGAIN, "locked")
        except OSError as error:
            self.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise as_typed(error, f"locking {path}") from error
            raise StoreBusy(
                f"another process writes to {path.parent.name!r}",
                hint="a log has one writer at a time; append through that process, or wait for it",
            ) from error

    def _try(self, wait: bool) -> bool:
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        self._locked = True
        return True

    def close(self) -> None:
        """Close without unlocking: a forked child that closes its copy leaves the lock with its parent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
