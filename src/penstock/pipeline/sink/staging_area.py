"""Where a sink stages rows: a local folder, or a folder of an object store that all tasks reach."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from penstock.log.files import DISK, replace
from penstock.pipeline.lake.storage import (
    Folder,
    NewObject,
    RemoteFolder,
    read_object,
    remove_objects,
    store_errors,
    write_object,
)


class StagingArea(Protocol):
    """Files by their names within the area, such as `run-a/0001/manifest`."""

    def create(self, name: str) -> Any:
        """Return a context that opens a new file, which is durable when the context ends."""

    def open(self, name: str) -> Any:
        """Open a file as a source of Arrow."""

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it does not exist."""

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a small file atomically and durably."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they exist."""

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that it holds."""

    def folders(self, name: str) -> list[str]:
        """Return the names of the folders in a folder."""

    def ages(self) -> dict[str, float]:
        """Return the age in seconds of every file in the area, by its name."""


def area_of(folder: Folder) -> StagingArea:
    return _LocalArea(folder) if isinstance(folder, Path) else _RemoteArea(folder)


class _LocalArea:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / name).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def open(self, name: str) -> Any:
        return self._folder / name

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            DISK.sync_folder(self._folder)
        replace(DISK, path, content)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def folders(self, name: str) -> list[str]:
        return [each.name for each in (self._folder / name).iterdir()]

    def ages(self) -> dict[str, float]:
        now = time.time()
        found = {}
        for path in self._folder.rglob("*"):
            try:
                found[str(path.relative_to(self._folder))] = now - path.stat().st_mtime
            except FileNotFoundError:
                continue
        return found


class _RemoteArea:
    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        new = NewObject(self._folder, name)
        yield new.target
        new.close()

    def open(self, name: str) -> Any:
        return self._folder.files().open_input_file(name)

    def read(self, name: str) -> bytes | None:
        return read_object(self._folder, name)

    def replace(self, name: str, content: bytes) -> None:
        write_object(self._folder, name, content)

    def remove(self, names: Iterable[str]) -> None:
        files = self._folder.files()
        for name in names:
            with store_errors(f"removing {self._folder}/{name}"):
                files.delete_file(name)

    def remove_folder(self, name: str) -> None:
        remove_objects(self._folder / name)

    def folders(self, name: str) -> list[str]:
        return sorted({each.partition("/")[0] for each in self._ages(name)})

    def ages(self) -> dict[str, float]:
        return self._ages("")

    def _ages(self, below: str) -> dict[str, float]:
        from pyarrow.fs import FileSelector, FileType

        now = time.time()
        folder = self._folder / below if below else self._folder
        with store_errors(f"listing {folder}"):
            found = folder.files().get_file_info(FileSelector("", allow_not_found=True, recursive=True))
        return {each.path: now - each.mtime.timestamp() for each in found if each.type == FileType.File}
