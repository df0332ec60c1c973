"""Injects disk faults and clock changes into real servers through a preloaded library.

The library (`disk.c`) is compiled at run time and therefore needs a C compiler, which `compiler()` looks for. `Trace`
computes what a power cut leaves on disk from the changes that the library recorded.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CONTROL = struct.Struct("qiiii")
NOTE = struct.Struct("8sIIQQ")
NOTE_BEGIN, NOTE_END = b"\xf9{note\r\xff", b"\xf9end}\r\n\xff"
# The unit that a disk writes completely or not at all.
SECTOR = 512
PAGE = 4096


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def library() -> Path:
    found = compiler()
    assert found is not None, "there is no C compiler"
    folder = Path(tempfile.mkdtemp(prefix="penstock-disk-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, target = Path(__file__).with_name("disk.c"), folder / "disk.so"
    subprocess.run([found, "-O1", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


class Disk:
    """Controls the faults of the files in one folder. Only with `traced` can the power be cut."""

    def __init__(self, root: Path, beside: Path, *, traced: bool, roomy: str = "") -> None:
        self.root = root
        self._control_path, self.trace_path = beside / "control", beside / "trace"
        self._control_path.write_bytes(bytes(CONTROL.size))
        self.trace_path.write_bytes(b"")
        for path in (self._control_path, self.trace_path):
            path.chmod(0o666)
        with self._control_path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), CONTROL.size)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "PROOF_ROOT": str(root),
            "PROOF_CONTROL": str(self._control_path),
            **({"PROOF_TRACE": str(self.trace_path)} if traced else {}),
            **({"PROOF_ROOMY": roomy} if roomy else {}),
        }
        self.clock_ahead_s = 0
        self.heal()

    def set(
        self, *, sync_delay_ms: int = 0, syncs_to_fail: int = 0, full: bool = False, index_full: bool = False
    ) -> None:
        CONTROL.pack_into(self._control, 0, self.clock_ahead_s, sync_delay_ms, syncs_to_fail, full, index_full)

    def heal(self) -> None:
        self.set()

    def move_clock(self, ahead_s: int) -> None:
        self.clock_ahead_s = ahead_s
        struct.pack_into("q", self._control, 0, ahead_s)

    def syncs_left_to_fail(self) -> int:
        return max(0, CONTROL.unpack_from(self._control)[2])


@dataclass
class File:
    """The synced contents of a file, and its changes since then: (position, data), or (size, None) for a new size."""

    synced: bytearray
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Changes that were pending when an fsync failed. The kernel may have dropped them, and a later fsync can succeed
    without writing them."""

    def sync(self, chance: random.Random) -> None:
        again = {at // PAGE for at, data in self.pending if data is not None}
        for at, data in self.doubtful:
            if data is None or at // PAGE in again or chance.random() < 0.5:
                self._change(at, data)
        for at, data in self.pending:
            self._change(at, data)
        self.doubtful, self.pending = [], []

    def fail(self) -> None:
        self.doubtful += self.pending
        self.pending = []

    def cut(self, chance: random.Random) -> None:
        """Keep a random part of the unsynced sectors and drop the rest."""
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        for at, data in self.doubtful + self.pending:
            if data is None:
                if chance.random() < share:
                    self._change(at, None)
                continue
            begin = 0
            while begin < len(data):
                end = min(len(data), (at + begin) // SECTOR * SECTOR + SECTOR - at)
                if chance.random() < share:
                    self._change(at + begin, data[begin:end])
                begin = end
        self.doubtful, self.pending = [], []

    def _change(self, at: int, data: bytes | None) -> None:
        size = at if data is None else at + len(data)
        if size > len(self.synced):
            self.synced.extend(bytes(size - len(self.synced)))
        if data is None:
            del self.synced[at:]
        else:
            self.synced[at:size] = data


class Trace:
    """Computes the files that a power cut would leave on the disk."""

    def __init__(self, disk: Disk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance
        self._position = 0
        self.files: dict[int, File] = {}
        self.names: dict[str, int] = {}
        """The inode of each path whose name is synced."""
        # Changes of names that are not synced yet: kind, path, new path, inode.
        self._pending: list[tuple[str, str, str, int]] = []
        for path in disk.root.rglob("*"):
            if path.is_file() and not path.name.endswith("-shm"):
                self.names[str(path)] = path.stat().st_ino
                self.files[path.stat().st_ino] = File(bytearray(path.read_bytes()))
        disk.trace_path.write_bytes(b"")

    def read(self) -> None:
        """Apply the changes that were recorded since the last call."""
        for kind, file, position, data in self._notes():
            match kind:
                case "w":
                    self._file(file).pending.append((position, data))
                case "t":
                    self._file(file).pending.append((position, None))
                case "s":
                    self._file(file).sync(self._chance)
                case "f":
                    self._file(file).fail()
                case "d":
                    self._sync_folder(data.split(b"\0")[0].decode())
                case "R":
                    self._rename_folder(*data.decode().split("\0")[:2])
                case _:
                    name, other, *_ = (*data.decode().split("\0"), "")
                    if kind == "c":
                        self.files[file] = File(bytearray())
                    self._pending.append((kind, name, other, file))

    def _notes(self) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield all complete records. A process that was killed while it wrote one had not made the change yet."""
        notes = self._disk.trace_path.read_bytes()
        start = notes.find(NOTE_BEGIN)
        while 0 <= start <= len(notes) - NOTE.size:
            _, kind, length, file, position = NOTE.unpack_from(notes, start)
            data = start + NOTE.size
            whole = notes[data + length : data + length + len(NOTE_END)] == NOTE_END
            if whole:
                yield chr(kind), file, position, notes[data : data + length]
            start = notes.find(NOTE_BEGIN, data + length if whole else start + 1)
        os.truncate(self._disk.trace_path, 0)

    def _file(self, number: int) -> File:
        return self.files.setdefault(number, File(bytearray()))

    def _sync_folder(self, folder: str) -> None:
        kept = []
        for each in self._pending:
            if os.path.dirname(each[1]) == folder:  # noqa: PTH120 (paths are text here)
                self._name(*each)
            else:
                kept.append(each)
        self._pending = kept

    def _rename_folder(self, old: str, new: str) -> None:
        """Treat the rename of a folder as synced, and use the new name in all pending changes."""

        def moved(path: str) -> str:
            return new + path.removeprefix(old) if path == old or path.startswith(f"{old}/") else path

        self.names = {moved(path): file for path, file in self.names.items()}
        self._pending = [(kind, moved(path), moved(other), file) for kind, path, other, file in self._pending]

    def _name(self, kind: str, path: str, other: str, file: int) -> None:
        if kind in "cl":
            self.names[path] = file
        elif kind == "u":
            self.names.pop(path, None)
        elif kind == "r" and path in self.names:
            self.names[other] = self.names.pop(path)

    def cut(self) -> None:
        """Put the folder into a state that a power cut could leave. All processes that use it must be dead."""
        self.read()
        undone = self._chance.randrange(len(self._pending) + 1)
        done, lost = self._pending[: len(self._pending) - undone], self._pending[len(self._pending) - undone :]
        for each in done:
            self._name(*each)
        lost_folders = tuple(f"{path}/" for kind, path, _, _ in lost if kind == "m")
        self.names = {path: file for path, file in self.names.items() if not path.startswith(lost_folders)}
        self._pending = []
        for file in self.files.values():
            file.cut(self._chance)
        self._put_in_place()
        for folder in lost_folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _put_in_place(self) -> None:
        owner = self._disk.root.stat()
        for path in self._disk.root.rglob("*"):
            if path.is_file() and str(path) not in self.names:
                path.unlink()
        files: dict[int, File] = {}
        for name, number in self.names.items():
            path, content = Path(name), self.files[number].synced
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
                os.chown(path, owner.st_uid, owner.st_gid)
                path.chmod(0o600)
            files[path.stat().st_ino] = File(content)
            self.names[name] = path.stat().st_ino
        self.files = files
