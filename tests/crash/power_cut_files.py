"""Files on a disk with power cuts: unsynced data may survive, vanish, or survive in part."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from penstock.log.files import Files

PAGE = 4096


class PowerCut(BaseException):
    """Ends the writer like a power cut. A BaseException, so that no error handling catches it."""


class PowerCutFiles(Files):
    """Works on real files; `cut` puts them into a state that a power cut could leave."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        self._synced = {path.stat().st_ino: path.read_bytes() for path in folder.iterdir()}
        # The changes of names that are not synced yet, each with a function that undoes it.
        self._names: list[tuple[Path, Callable[[], None]]] = []
        self.operations_left: int | None = None
        """The number of operations until the power cut."""

    def _operation(self) -> None:
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left <= 0:
                raise PowerCut

    def open(self, path: Path) -> int:
        self._operation()
        new = not path.exists()
        fd = super().open(path)
        if new:
            self._synced[os.fstat(fd).st_ino] = b""
            self._names.append((path, lambda: path.unlink(missing_ok=True)))
        return fd

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        try:
            self._operation()
        except PowerCut:
            super().write(fd, memoryview(data)[: self._chance.randrange(len(data) + 1)], position)
            raise
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        self._operation()
        self._synced[os.fstat(fd).st_ino] = os.pread(fd, os.fstat(fd).st_size, 0)

    def truncate(self, fd: int, size: int) -> None:
        self._operation()
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._operation()
        restore = self._forget(target) if target.exists() else None

        def undo() -> None:
            target.rename(source)
            if restore is not None:
                restore()

        super().rename(source, target)
        self._names.append((target, undo))

    def remove(self, path: Path) -> None:
        self._operation()
        restore = self._forget(path) if path.exists() else None
        super().remove(path)
        if restore is not None:
            self._names.append((path, restore))

    def _forget(self, path: Path) -> Callable[[], None]:
        """Forget a file before its removal, because its inode may be reused, and return a function that restores it."""
        written = path.read_bytes()
        synced = self._synced.pop(path.stat().st_ino, None)

        def restore() -> None:
            path.write_bytes(written)
            if synced is not None:
                self._synced[path.stat().st_ino] = synced

        return restore

    def sync_folder(self, folder: Path) -> None:
        self._operation()
        self._names = [(path, undo) for path, undo in self._names if path.parent != folder]

    def cut(self) -> None:
        """Undo a random number of the last name changes, and restore random pages of unsynced contents."""
        undone = self._chance.randrange(len(self._names) + 1)
        for _, undo in reversed(self._names[len(self._names) - undone :]):
            undo()
        for path in self._folder.iterdir():
            synced = self._synced.get(path.stat().st_ino)
            if synced is not None:
                path.write_bytes(self._mix(synced, path.read_bytes()))

    def _mix(self, synced: bytes, written: bytes) -> bytes:
        shorter, longer = sorted((len(synced), len(written)))
        size = self._chance.choice((len(synced), len(written), self._chance.randint(shorter, longer)))
        mixed = bytearray()
        for at in range(0, size, PAGE):
            source = written if self._chance.random() < 0.5 else synced
            mixed += source[at : at + PAGE].ljust(PAGE, b"\0")
        # A disk cannot change the bytes in which both states agree.
        differing = (at for at, pair in enumerate(zip(synced, written, strict=False)) if pair[0] != pair[1])
        same = next(differing, shorter)
        mixed[: min(same, size)] = synced[: min(same, size)]
        return bytes(mixed[: max(size, same)])
