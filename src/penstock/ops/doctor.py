"""Checks a SQLite file or a database, and reports problems with severity and advice. Changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from penstock.core.ids import ID_BITS, QUEUE_SHIFT
from penstock.core.model import DAY_MS, system_clock
from penstock.errors import Damaged, PenstockError
from penstock.journal.drainer import journal_folder
from penstock.journal.folders import logs_beside
from penstock.lite import LiteQueue
from penstock.log.cut_records import cut_files
from penstock.log.manifest import load_identity
from penstock.log.segment import LOG, file_name
from penstock.log.segment_placement import ASIDE, misplaced_in
from penstock.store.common import GAUGES
from penstock.store.sqlite.connection import connect, mapping_errors
from penstock.store.sqlite.probe import is_penstock_database
from penstock.store.sqlite.schema import SCHEMA_VERSION, schema_version

Level = Literal["ok", "note", "problem"]

WAL_BYTES_HIGH = 256 << 20
DISK_BYTES_LOW = 1 << 30
FREE_SHARE_HIGH = 0.5
OVERDUE_MS_HIGH = 60_000
RESTORE = "stop all writers, keep a copy of the file with its -wal, and restore the last backup"


class Diagnosis(Struct):
    level: Level
    what: str
    detail: str
    advice: str | None = None


def examine(path: Path) -> list[Diagnosis]:
    """Run all checks on one file."""
    if path.is_dir():
        return [Diagnosis("problem", "file", f"{path} is a folder", "name the file in it; a server's is penstock.db")]
    if not path.is_file():
        return [Diagnosis("problem", "file", f"{path} is not there", "check the path; a first put makes the file")]
    findings = [Diagnosis("ok", "sqlite", f"SQLite {sqlite3.sqlite_version}")]
    try:
        with mapping_errors(str(path)):
            findings += _file_findings(path)
            findings += _logs(path)
    except Damaged as error:
        findings.append(Diagnosis("problem", "file", str(error.args[0]), RESTORE))
    except PenstockError as error:
        findings.append(Diagnosis("problem", "file", str(error.args[0]), error.hint))
    findings += _self_test(path.parent)
    findings += _java()
    return findings


def examine_database(url: str) -> list[Diagnosis]:
    """Check a PostgreSQL database: version, schema, and the settings on which durability depends."""
    try:
        from penstock.postgres import connection as database
        from penstock.postgres import schema as tables
    except ImportError:
        return [Diagnosis("problem", "postgresql", "psycopg is not installed", "pip install 'penstock-mq[postgres]'")]
    findings: list[Diagnosis] = []
    try:
        target = database.DatabaseTarget(url)
        with closing(database.connect(target, busy_ms=5_000)) as connection:
            findings.append(Diagnosis("ok", "postgresql", connection.info.parameter_status("server_version") or ""))
            version = tables.schema_version(connection, target.schema)
            if version == 0:
                advice = "is this the right database? the first use creates the tables"
                findings.append(
                    Diagnosis("problem", "schema", f"schema {target.schema!r} has no Penstock tables", advice)
                )
            elif version < tables.SCHEMA_VERSION:
                detail = f"version {version}; this Penstock upgrades it to {tables.SCHEMA_VERSION} on opening"
                findings.append(Diagnosis("note", "schema", detail))
            else:
                findings.append(Diagnosis("ok", "schema", f"version {version}"))
            unsafe = database.unsafe_settings(connection)
            for detail in unsafe:
                findings.append(Diagnosis("problem", "durability", detail, "turn it on in postgresql.conf and reload"))
            findings += _commit_setting(connection)
            if not unsafe:
                findings.append(Diagnosis("ok", "durability", "a commit that was answered survives a crash"))
    except PenstockError as error:
        findings.append(Diagnosis("problem", "postgresql", str(error.args[0]), error.hint))
    return findings


def _commit_setting(connection: Any) -> Iterator[Diagnosis]:
    """Report if synchronous_commit is off by default. Penstock overrides it for itself, not for other programs."""
    row = connection.execute("SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'").fetchone()
    if row == ("off",):
        yield Diagnosis(
            "note",
            "durability",
            "synchronous_commit is off by default for this user; Penstock turns it on for its own commits",
            "other programs of this user can lose their last commits in a crash",
        )


def _file_findings(path: Path) -> Iterator[Diagnosis]:
    if not is_penstock_database(path):
        yield Diagnosis("problem", "schema", f"{path} holds no Penstock tables", "is this the right file?")
        return
    yield from _permissions(path)
    with closing(connect(str(path), busy_ms=5_000)) as connection:
        for look in (_schema, _integrity, _counters, _leases, _dead_letters, _sizes):
            # Read one snapshot, because others keep writing between statements.
            connection.execute("BEGIN")
            found = list(look(connection, path))
            connection.execute("COMMIT")
            yield from found


def _logs(path: Path) -> Iterator[Diagnosis]:
    """Report records that were cut off the journal or the streams, and misplaced files."""
    found = False
    for folder in logs_beside(path):
        for problem in _log_problems(folder):
            found = True
            is_journal = folder == journal_folder(path)
            repair = f"stop the server, then `penstock {'journal repair' if is_journal else 'stream repair NAME'}`"
            yield Diagnosis("problem", "log", problem, repair)
    if not found:
        yield Diagnosis("ok", "logs", "nothing was cut off or set aside")


def _log_problems(folder: Path) -> Iterator[str]:
    try:
        identity = load_identity(folder)
        misplaced = misplaced_in(folder, identity)
    except PenstockError as error:
        yield str(error.args[0])
        return
    for cut in cut_files(folder):
        yield f"{cut} holds whole records that were cut off"
    for first in misplaced:
        yield f"{folder / file_name(first)} belongs to another stream or offset, and is not served"
    for aside in sorted(folder.glob(f"*{LOG}{ASIDE}")):
        yield f"{aside} was found in the wrong place, and is not served"


def _permissions(path: Path) -> Iterator[Diagnosis]:
    """Check permissions of the file and of -wal and -shm, which keep the mode from their creation."""
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        if file.exists() and not (file.stat().st_mode & 0o222 and os.access(file, os.W_OK)):
            yield Diagnosis("problem", "permissions", f"{file} cannot be written to", f"chmod u+w {file}")


def _schema(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    version = schema_version(connection)
    if version < SCHEMA_VERSION:
        yield Diagnosis(
            "note", "schema", f"version {version}; this Penstock upgrades it to {SCHEMA_VERSION} on opening"
        )
    else:
        yield Diagnosis("ok", "schema", f"version {version}")


def _integrity(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    verdicts = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
    if verdicts == ["ok"]:
        yield Diagnosis("ok", "integrity", "every page and index is consistent")
    else:
        yield Diagnosis(
            "problem",
            "integrity",
            "; ".join(verdicts),
            RESTORE,
        )


def _counters(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    """Compare the stored counters with a recount."""
    sums = ", ".join(f"ifnull(sum({gauge}), 0)" for gauge in GAUGES)
    kept = list(connection.execute(f"SELECT {sums} FROM penstock_counter").fetchone())
    beyond = (
        f"SELECT count(*) FROM penstock_counter c JOIN {{}} AND place < (c.queue_id * 2 + 1) << {ID_BITS} "
        "WHERE c.queue_id > 0"
    )
    pushed, leased, plain = (
        connection.execute(beyond.format(table)).fetchone()[0]
        for table in (
            f"penstock_message ON place > (c.queue_id << {QUEUE_SHIFT} | c.last_id)",
            "penstock_leased l ON l.queue_id = c.queue_id AND place > c.cursor",
            "penstock_message ON place > c.cursor",
        )
    )
    # Some messages are counted later, and their leases are beyond the cursor.
    kept[0] += pushed - leased
    kept[2] += leased
    plain -= leased
    tables = ("ready", "scheduled", "leased", "dead WHERE NOT leased", "archive")
    counted = [connection.execute(f"SELECT count(*) FROM penstock_{table}").fetchone()[0] for table in tables]
    counted[0] += plain
    shown = ", ".join(f"{count} {name}" for name, count in zip(GAUGES, counted, strict=True))
    if kept == counted:
        yield Diagnosis("ok", "messages", shown)
    else:
        yield Diagnosis("problem", "counters", f"kept {kept}, counted {counted}", "please report this as a bug")


def _leases(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    now = system_clock()
    stuck = connection.execute(
        "SELECT q.name, count(*), min(l.leased_until), max(l.worker) FROM penstock_leased l"
        " JOIN penstock_queue q ON q.id = l.queue_id WHERE l.leased_until <= ? GROUP BY q.name",
        (now - OVERDUE_MS_HIGH,),
    ).fetchall()
    for name, count, oldest, worker in stuck:
        of = f", last of worker {worker}" if worker else ""
        yield Diagnosis(
            "note",
            "leases",
            f"queue {name!r}: {count} leases ran out, the oldest {_age(now - oldest)} ago{of}",
            "they come back with the next pop of that queue; is a consumer running?",
        )
    (long,) = connection.execute(
        "SELECT count(*) FROM penstock_leased WHERE leased_until > ?", (now + DAY_MS,)
    ).fetchone()
    if long:
        yield Diagnosis(
            "note",
            "leases",
            f"{long} leases last for more than a day",
            "a crashed worker's message stays away that long",
        )
    if not stuck and not long:
        yield Diagnosis("ok", "leases", "none is stuck")


def _dead_letters(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    now = system_clock()
    rows = connection.execute(
        "SELECT q.name, count(*), max(d.died_at) FROM penstock_dead d"
        " JOIN penstock_queue q ON q.id = d.queue_id GROUP BY q.name"
    ).fetchall()
    for name, count, newest in rows:
        yield Diagnosis(
            "note",
            "dead letters",
            f"queue {name!r}: {count}, the newest {_age(now - newest)} ago",
            "look at their errors with LiteQueue.dlq(), then redrive() or leave them",
        )
    if not rows:
        yield Diagnosis("ok", "dead letters", "none")


def _sizes(connection: sqlite3.Connection, path: Path) -> Iterator[Diagnosis]:
    pages, free, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    file_bytes = pages * page_bytes
    detail = f"{_bytes(file_bytes)}, of which {_bytes(free * page_bytes)} free"
    if free > pages * FREE_SHARE_HIGH and file_bytes > 64 << 20:
        yield Diagnosis("note", "size", detail, "free pages are used again; to give them back, compact the file")
    else:
        yield Diagnosis("ok", "size", detail)
    wal = path.with_name(path.name + "-wal")
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    if wal_bytes > WAL_BYTES_HIGH:
        yield Diagnosis(
            "problem",
            "wal",
            _bytes(wal_bytes),
            "a reader holds an old snapshot open: find and end that process",
        )
    else:
        yield Diagnosis("ok", "wal", _bytes(wal_bytes))
    disk_free = shutil.disk_usage(path.parent).free
    low = disk_free < DISK_BYTES_LOW
    yield Diagnosis("problem" if low else "ok", "disk", f"{_bytes(disk_free)} free", "make room" if low else None)


def _self_test(folder: Path) -> Iterator[Diagnosis]:
    """Send a message through a scratch file beside the real one: same disk, same permissions."""
    noise = bytes(range(256)) + os.urandom(4096)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=folder) as scratch,
            LiteQueue(Path(scratch) / "self-test.db") as queue,
        ):
            queue.put(noise)
            message = queue.pop()
            intact = message is not None and message.data == noise and type(message.created_at) is int
            if message is not None:
                queue.ack(message)
            if intact and queue.pop() is None:
                yield Diagnosis("ok", "self test", "put, pop and ack of 4 KiB of noise, bit for bit")
            else:
                yield Diagnosis(
                    "problem",
                    "self test",
                    "a message did not come back as it went in",
                    "report this as a bug",
                )
    except (OSError, PenstockError) as error:
        yield Diagnosis("problem", "self test", str(error), "check the permissions and the free space of the folder")


def _java() -> Iterator[Diagnosis]:
    """Report the Java for the pipeline, if it is installed."""
    if find_spec("pyspark") is None:
        return
    from penstock.pipeline.runtime.java import find_java

    try:
        java = find_java()
    except PenstockError as error:
        yield Diagnosis("note", "java", str(error.args[0]), error.hint)
    else:
        yield Diagnosis("ok", "java", f"{java.version} of the {java.origin}: {java.home}")


def _age(ms: int) -> str:
    for unit, size in (("d", DAY_MS), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{max(0, ms) // 1000} s"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
