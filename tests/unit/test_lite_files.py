"""LiteQueue on unsuitable files raises a typed error with a hint, and loses nothing."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import (
    CannotOpen,
    Damaged,
    DiskFull,
    LiteQueue,
    NotADatabase,
    SchemaTooNew,
    StoreBusy,
)
from tests.conformance.recount import check_tables

NOBODY = 65534
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def fill_queue(path: Path, count: int = 500, size: int = 200) -> None:
    with LiteQueue(path) as queue:
        queue.put_many([random.Random(n).randbytes(size) for n in range(count)])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match=r"the folder .*/no/such does not exist"):
        LiteQueue(tmp_path / "no/such/tasks.db")


def test_a_folder_is_refused_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="it is a folder"):
        LiteQueue(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CannotOpen, match="is not a folder"):
        LiteQueue(tmp_path / "file" / "tasks.db")


@pytest.mark.parametrize("content", [b"hello, world\n" * 100, random.Random(3).randbytes(10_000), b"hello"])
def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(NotADatabase, match="move the file away"):
        LiteQueue(path)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_empty_file_becomes_a_queue(path: Path) -> None:
    path.touch()
    with LiteQueue(path) as queue:
        queue.put(b"x")
        assert queue.qsize() == 1


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_truncated_database_is_reported_as_damaged(path: Path, keep: float) -> None:
    fill_queue(path)
    os.truncate(path, int(path.stat().st_size * keep))
    with pytest.raises(Damaged, match="restore a backup"):
        drain_queue(path)


def test_a_database_truncated_in_its_header_is_refused(path: Path) -> None:
    fill_queue(path)
    os.truncate(path, 50)
    with pytest.raises((NotADatabase, Damaged)):
        drain_queue(path)


@pytest.mark.parametrize("kind", ["noise", "zeros"])
def test_a_damaged_page_is_reported_and_never_served(path: Path, kind: str) -> None:
    fill_queue(path)
    whole = path.read_bytes()
    pages = len(whole) // PAGE
    sent = {random.Random(n).randbytes(200) for n in range(500)}
    reported = 0
    for number in random.Random(5).sample(range(1, pages), 12):
        noise = random.Random(number).randbytes(PAGE) if kind == "noise" else bytes(PAGE)
        for beside in ("-wal", "-shm"):
            Path(f"{path}{beside}").unlink(missing_ok=True)
        path.write_bytes(whole[: number * PAGE] + noise + whole[(number + 1) * PAGE :])
        try:
            received = drain_queue(path)
        except Damaged:
            reported += 1
        else:
            assert received <= sent
    assert reported


def drain_queue(path: Path) -> set[bytes]:
    received: set[bytes] = set()
    with LiteQueue(path) as queue:
        while messages := queue.pop_many(50):
            received.update(message.data for message in messages)
            assert queue.ack_many(messages) == []
        queue.put(b"x")
        queue.qsize()
    return received


def test_queues_can_share_a_file_with_the_users_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO orders VALUES (7)")
    with LiteQueue(path) as queue:
        queue.put(b"x")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM orders").fetchall() == [(7,)]
        check_tables(db)


def test_a_newer_schema_is_refused_and_left_unchanged(path: Path) -> None:
    fill_queue(path, 3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO penstock_migration VALUES (999, 'later', 'abc', 0)")
    with pytest.raises(SchemaTooNew, match=r"version 999.*newer Penstock"):
        LiteQueue(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM penstock_migration WHERE version = 999")
    with LiteQueue(path) as queue:
        assert queue.qsize() == 3


def test_a_migration_with_another_checksum_is_refused(path: Path) -> None:
    fill_queue(path, 3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE penstock_migration SET checksum = 'other' WHERE version = 1")
    with pytest.raises(Damaged, match=r"migration 1 .*restore a backup"):
        LiteQueue(path)


def test_a_lock_held_too_long_is_reported_after_busy_ms(path: Path) -> None:
    with LiteQueue(path, busy_ms=50) as queue, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="raise busy_ms"):
            queue.put(b"x")
        other.execute("ROLLBACK")
        queue.put(b"x")
        assert queue.qsize() == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing_and_the_queue_recovers(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(6 << 20))
    path, kept = small_disk / "tasks.db", []
    with LiteQueue(path) as queue:
        kept += fill_up(queue)
        with pytest.raises(DiskFull, match="free some disk space"):
            queue.put_many([b"z" * 50_000] * 10)
        assert queue.qsize() == len(kept)
        (small_disk / "ballast").unlink()
        kept.append(queue.put(b"after"))
        message = queue.pop()
        assert message is not None
        queue.ack(message)
        assert message.id == kept.pop(0)
    with LiteQueue(path) as queue:
        assert [message.id for message in queue.pop_many(10_000)] == kept
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        check_tables(db)


@pytest.mark.parametrize("count", [0, 3])
def test_a_disk_that_is_full_from_the_start_is_reported(small_disk: Path, count: int) -> None:
    path, ballast = small_disk / "tasks.db", small_disk / "ballast"
    if count:
        fill_queue(path, count)
    # The ballast is larger than the disk, so this write fails and leaves no space.
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(9 << 20))
    with pytest.raises(DiskFull, match="free some disk space"):
        drain_queue(path)
    ballast.unlink()
    with LiteQueue(path) as queue:
        assert queue.qsize() == count
        queue.put(b"x")


def fill_up(queue: LiteQueue) -> list[str]:
    kept = []
    try:
        while True:
            kept.append(queue.put(b"x" * 20_000))
    except DiskFull:
        return kept


def test_a_file_that_cannot_grow_loses_nothing_and_the_queue_recovers(path: Path) -> None:
    """This test needs no right to mount a disk: it limits the file size of a process."""
    done = run_in_process(
        f"""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from penstock import LiteQueue, StoreError
        with LiteQueue({str(path)!r}) as queue:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
            kept = 0
            try:
                for kept in range(1_000):
                    queue.put(b"x" * 20_000)
            except StoreError as error:
                assert "file size limits" in str(error), error
            assert queue.qsize() == kept, (queue.qsize(), kept)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            queue.put(b"after")
            print(kept + 1)
        """
    )
    with LiteQueue(path) as queue:
        assert queue.qsize() == int(done) > 10


@pytest.mark.skipif(os.getuid() != 0, reason="only root can drop its rights")
@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555), (None, 0o555), (0o000, 0o777)]
)
def test_a_read_only_file_is_reported_and_left_unchanged(
    tmp_path: Path, file_mode: int | None, folder_mode: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "tasks.db"
    if file_mode is not None:
        fill_queue(path, 3)
        path.chmod(file_mode)
    for above in [tmp_path, *tmp_path.parents]:
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o755)
    folder.chmod(folder_mode)
    output = run_in_process(
        f"""
        from penstock import CannotOpen, LiteQueue, ReadOnly
        os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
        try:
            with LiteQueue({str(path)!r}) as queue:
                queue.put(b"x")
        except (ReadOnly, CannotOpen) as error:
            print(error)
        """
    )
    assert "permission" in output or "cannot be written to" in output
    folder.chmod(0o755)
    if file_mode is not None:
        with LiteQueue(path) as queue:
            assert queue.qsize() == 3


def run_in_process(script: str) -> str:
    prelude = f"import os, {resource.__name__}, {signal.__name__}\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
