"""The faulty disk: a power cut removes unsynced data and nothing else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import LiteQueue
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


def test_a_power_cut_undoes_only_unsynced_changes(tmp_path: Path) -> None:
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


def test_a_trace_record_that_a_kill_truncated_is_skipped(tmp_path: Path) -> None:
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
    ("faults", "code", "error"),
    [
        ({"full": True}, "os.pwrite(fd, b'x', 1 << 20)", "No space left"),
        ({"full": True}, "os.open(sys.argv[1] + '/new', os.O_CREAT | os.O_WRONLY)", "No space left"),
        ({"full": True}, "os.pwrite(fd, b'x', 0)", ""),
        ({"syncs_to_fail": 1}, "os.fsync(fd)", "Input/output error"),
        ({"syncs_to_fail": 1}, "\ntry: os.fdatasync(fd)\nexcept OSError: os.fdatasync(fd)", ""),
    ],
)
def test_the_disk_fails_with_the_injected_faults(tmp_path: Path, faults: dict[str, int], code: str, error: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"there")
    disk = Disk(root, tmp_path, traced=False)
    disk.set(**faults)  # type: ignore[arg-type]
    script = f"import os, sys\nfd = os.open(sys.argv[1] + '/file', os.O_RDWR)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script, root], env=os.environ | disk.environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) == (not error)
    assert error in done.stderr


def test_a_moved_clock_shows_the_new_time(tmp_path: Path) -> None:
    disk = Disk(tmp_path, tmp_path, traced=False)
    disk.move_clock(3_600)
    script = "import time, sys; print(time.time() - float(sys.argv[1]))"
    before = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], capture_output=True, text=True)
    done = subprocess.run(
        [sys.executable, "-c", script, before.stdout], env=os.environ | disk.environment, capture_output=True, text=True
    )
    assert float(done.stdout) >= 3_600


PUSHES = """
import json, os, signal, sys
from penstock import LiteQueue, StoreError

queue = LiteQueue(sys.argv[1])
queue.put(b"before")
print("ready", flush=True)
sys.stdin.readline()
try:
    queue.put_many([bytes(500_000)] * int(sys.argv[2]))
except StoreError as error:
    print(json.dumps([error.code, error.maybe_done, str(error)]), flush=True)
    visible = queue.qsize()
    print(json.dumps(visible), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("fault", "count", "code", "kept"),
    [({"index_full": True}, 36, "disk_full", True), ({"full": True}, 36, "disk_full", False)],
    ids=["the index of the log cannot grow", "the disk is full"],
)
def test_a_failed_push_is_reported_as_undone_only_if_a_kill_cannot_bring_it_back(
    tmp_path: Path, fault: dict[str, bool], count: int, code: str, kept: bool
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = Disk(root, tmp_path, traced=False)
    with subprocess.Popen(
        [sys.executable, "-c", PUSHES, root / "queue.db", str(count)],
        env=os.environ | disk.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        disk.set(**fault)
        process.stdin.write("go\n")
        process.stdin.flush()
        refused, maybe_done, text = json.loads(process.stdout.readline())
        assert json.loads(process.stdout.readline()) == 1
    with LiteQueue(root / "queue.db") as queue:
        assert (queue.qsize() > 1) is kept
    assert (refused, maybe_done) == (code, kept)
    assert ("nothing of this request was kept" in text) is not kept
