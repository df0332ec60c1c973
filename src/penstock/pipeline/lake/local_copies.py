"""Copies of a lake's small files on this machine, for a Spark that runs here and cannot read the object store itself.

To start Python workers takes longer than to copy a few megabytes. Files of a lake never change, so a copy stays right.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from penstock.pipeline.lake.storage import RemoteFolder, missing_file, store_errors

# Of one read of a table; more is read by tasks, which leave out the columns that are not needed.
READ_BYTES_MAX = 32 << 20
# A step reads the tables six times.
KEPT_BYTES_MAX = 8 * READ_BYTES_MAX
AT_ONCE = 8


class LocalCopies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[Path, int] = {}
        """Oldest use first."""

    def of(self, folder: RemoteFolder, sizes: Mapping[str, int]) -> list[str]:
        """Return the paths of copies of these files."""
        with self._lock:
            paths = {name: self._path(folder, name) for name in sizes}
            missing = [name for name, path in paths.items() if path not in self._sizes]
            if missing:
                files = folder.files(sizes)
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    list(pool.map(lambda name: _copy(folder, files, name, paths[name]), missing))
            for name, path in paths.items():
                self._sizes.pop(path, None)
                self._sizes[path] = sizes[name]
            self._remove_oldest()
            return [str(path) for path in paths.values()]

    def _path(self, folder: RemoteFolder, name: str) -> Path:
        return self._folder.joinpath(*folder.url.split("/")[2:], name)

    def _remove_oldest(self) -> None:
        while sum(self._sizes.values()) > KEPT_BYTES_MAX:
            path = next(iter(self._sizes))
            del self._sizes[path]
            path.unlink(missing_ok=True)


def _copy(folder: RemoteFolder, files: object, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(f"reading {folder}/{name}"):
        try:
            with files.open_input_file(name) as file:  # type: ignore[attr-defined]
                path.write_bytes(file.read())
        except FileNotFoundError as error:
            raise missing_file("the lake", f"{folder}/{name}") from error


@cache
def local_copies() -> LocalCopies:
    """Return the copies of this process."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-lake-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return LocalCopies(folder)
