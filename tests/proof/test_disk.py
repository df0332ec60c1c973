"""The disk that fails: a power cut takes back what was not synced, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.disk import Disk, Trace, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="the disk is compiled where there is a C compiler")

WRITES = """
import os, sys
os.chdir(sys.argv[1])
fd = os.open("synced", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"a" * 3000, 0)
os.fsync(fd)
folder = os.open(".", os.O_RDONLY)
os.fsync(folder)
os.pwrite(fd, b"b" * 3000, 3000)
os.close(os.open("unsynced", os.O_RDWR | os.O_CREAT))
os.rename("old", "new")
"""


def test_a_power_cut_takes_back_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    sizes, names = set(), set()
    for seed in range(12):
        root = tmp_path / f"root{seed}"
        root.mkdir()
        (root / "old").write_bytes(b"old")
        disk = Disk(root, tmp_path, traced=True)
        trace = Trace(disk, random.Random(seed))
        subprocess.run([sys.executable, "-c", WRITES, root], env=os.environ | disk.environment, check=True)
        trace.cut()
        content = (root / "synced").read_bytes()
        assert content[:3000] == b"a" * 3000
        assert set(content[3000:]) <= {0, ord("b")}
        sizes.add(len(content))
        names.add(tuple(sorted(path.name for path in root.iterdir())))
    assert (min(sizes), max(sizes)) == (3000, 6000)
    assert len(sizes) > 2
    assert names == {("old", "synced"), ("old", "synced", "unsynced"), ("new", "synced", "unsynced")}


def test_a_note_that_a_kill_cut_off_is_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = Disk(root, tmp_path, traced=True)
    trace = Trace(disk, random.Random(1))
    once = "import os, sys; root, text = sys.argv[1:]; fd = os.open(root + '/f', os.O_RDWR | os.O_CREAT)"
    once += "; os.pwrite(fd, text.encode(), 0)"
    sync = "; os.fsync(fd)"
    for code, text in ((once + sync, "kept"), (once, "torn"), (once + sync, "next")):
        subprocess.run([sys.executable, "-c", code, root, text], env=os.environ | disk.environment, check=True)
        if text == "torn":
            os.truncate(disk.trace_path, disk.trace_path.stat().st_size - 10)
    kinds = [(kind, data) for kind, _, _, data in trace._notes() if kind in "ws"]
    assert kinds == [("w", b"kept"), ("s", b""), ("w", b"next"), ("s", b"")]


@pytest.mark.parametrize(
    ("faults", "code", "told"),
    [
        ({"full": True}, "os.pwrite(fd, b'x', 1 << 20)", "No space left"),
        ({"full": True}, "os.open(sys.argv[1] + '/new', os.O_CREAT | os.O_WRONLY)", "No space left"),
        ({"full": True}, "os.pwrite(fd, b'x', 0)", ""),
        ({"syncs_to_fail": 1}, "os.fsync(fd)", "Input/output error"),
        ({"syncs_to_fail": 1}, "\ntry: os.fdatasync(fd)\nexcept OSError: os.fdatasync(fd)", ""),
    ],
)
def test_it_fails_as_it_is_told(tmp_path: Path, faults: dict[str, int], code: str, told: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"there")
    disk = Disk(root, tmp_path, traced=False)
    disk.set(**faults)  # type: ignore[arg-type]
    script = f"import os, sys\nfd = os.open(sys.argv[1] + '/file', os.O_RDWR)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script, root], env=os.environ | disk.environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) == (not told)
    assert told in done.stderr


def test_the_clock_is_where_it_was_moved_to(tmp_path: Path) -> None:
    disk = Disk(tmp_path, tmp_path, traced=False)
    disk.move_clock(3_600)
    script = "import time, sys; print(time.time() - float(sys.argv[1]))"
    before = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], capture_output=True, text=True)
    done = subprocess.run(
        [sys.executable, "-c", script, before.stdout], env=os.environ | disk.environment, capture_output=True, text=True
    )
    assert float(done.stdout) >= 3_600
