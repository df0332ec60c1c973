"""Kill the process that migrates an old store with SIGKILL at each step, and compare what is left with the original.

python tests/crash/migration_rounds.py --store sqlite --every 1

The stores have the schema of the first release and the one before the newest. A step is a statement; of a file also
each page that is written, and of a database each change of its schema, and the commit. In every third round another
process is waiting to migrate the same store.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psycopg

from penstock.postgres import schema as postgres_schema
from penstock.store.factory import open_store
from penstock.store.sqlite import schema as sqlite_schema
from tests.postgres import Cluster
from tools.fixtures import SCHEMA

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "0.1.0"
PAGE_BYTES = 4_096
SECONDS_MAX = 60
# Time that a rival gets to wait for the process that migrates.
RIVAL_SECONDS = 0.02
# Steps of a migration on each store, at least.
STEPS_MIN = 20
PAUSE_LOCK = 7_001
Dump = list[Any]


@dataclass(frozen=True)
class Step:
    """What the opening process is killed at: the `number`-th statement, page of a file, or change of a schema."""

    kind: str
    number: int


class OldStore(ABC):
    """A store with an old schema, of which each round gets a copy."""

    kinds: tuple[str, ...]
    url: str

    @abstractmethod
    def copy(self) -> None:
        """Make a new copy at `url`, and remove the one before."""

    @abstractmethod
    def dump(self) -> Dump:
        """Return everything in the copy, read without Penstock."""

    @staticmethod
    @abstractmethod
    def arm(step: Step) -> None:
        """Let this process, which has not opened it yet, stop or die at that step."""

    @contextmanager
    def paused(self, step: Step) -> Iterator[None]:
        """Make what the opening process began wait at that step, until the end of this block."""
        yield

    def reaches(self, opener: int, step: Step) -> bool:
        """Wait until the process is at that step. Returns False if it has opened the store before."""
        found = os.waitid(os.P_PID, opener, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert found is not None
        if found.si_code != os.CLD_EXITED:
            return True
        assert exit_code(opener) == 0, f"{step}: the store was not opened"
        return False

    def settle(self) -> None:  # noqa: B027 (a process that is gone leaves nothing running on a file)
        """Wait until what the killed process began has ended."""


class OldFile(OldStore):
    kinds = ("statement", "page")

    def __init__(self, folder: Path, version: int | None) -> None:
        self._original, self._path = folder / "original.db", folder / "copy.db"
        self.url = str(self._path)
        with closing(sqlite3.connect(self._original)) as connection:
            connection.executescript((FIXTURES / "sqlite.sql").read_text("utf-8"))
            connection.isolation_level = None
            for migration in sqlite_schema.MIGRATIONS:
                if version is not None and sqlite_schema.schema_version(connection) < migration.version <= version:
                    sqlite_schema._apply(connection, migration, 0)

    def copy(self) -> None:
        for end in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._path}{end}").unlink(missing_ok=True)
        shutil.copyfile(self._original, self._path)

    def dump(self) -> Dump:
        with closing(sqlite3.connect(self._path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            versions = connection.execute("SELECT version, name, checksum FROM penstock_migration").fetchall()
            lines = [line for line in connection.iterdump() if not line.startswith('INSERT INTO "penstock_migration"')]
            return [*versions, *sorted(lines)]

    @staticmethod
    def arm(step: Step) -> None:
        if step.kind == "page":
            # The kernel kills a process that writes behind this place of any file.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (step.number * PAGE_BYTES, resource.RLIM_INFINITY))
            return
        statements, connect = count(1), sqlite3.connect

        def trace(_: str) -> None:
            if next(statements) == step.number:
                os.kill(os.getpid(), signal.SIGSTOP)

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(trace)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]


PAUSE = f"""
CREATE FUNCTION public.pause_at(step text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF step = current_setting('kill.step', true) THEN PERFORM pg_advisory_xact_lock_shared({PAUSE_LOCK}); END IF;
END $$;
CREATE FUNCTION public.changed() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE number int := coalesce(nullif(current_setting('kill.seen', true), '')::int, 0) + 1;
BEGIN
  PERFORM set_config('kill.seen', number::text, false), public.pause_at('change-' || number);
END $$;
CREATE FUNCTION public.committing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM public.pause_at('commit-1');
  RETURN NULL;
END $$;
CREATE EVENT TRIGGER changed ON ddl_command_end EXECUTE FUNCTION public.changed();
CREATE CONSTRAINT TRIGGER committing AFTER INSERT ON {SCHEMA}.migration DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION public.committing();
"""


class OldDatabase(OldStore):
    kinds = ("statement", "change", "commit")

    def __init__(self, cluster: Cluster, version: int | None) -> None:
        self._cluster = cluster
        self.url = f"{self._at('copy')}&schema={SCHEMA}"
        self._watch = psycopg.connect(self._at("postgres"), autocommit=True)
        self._execute("postgres", "DROP DATABASE IF EXISTS original", "CREATE DATABASE original")
        with psycopg.connect(self._at("original"), autocommit=True) as connection:
            connection.execute((FIXTURES / "postgres.sql").read_text("utf-8").encode())
            done = postgres_schema.schema_version(connection, SCHEMA)
            for migration in postgres_schema.MIGRATIONS:
                if version is not None and done < migration.version <= version:
                    postgres_schema._apply(connection, migration, SCHEMA)
            connection.execute(PAUSE.encode())

    def _at(self, database: str) -> str:
        return urlunsplit(urlsplit(self._cluster.url)._replace(path=f"/{database}"))

    def _execute(self, database: str, *statements: str) -> list[list[Any]]:
        """Return the rows of each statement."""
        with psycopg.connect(self._at(database), autocommit=True) as connection:
            cursors = [connection.execute(statement.encode()) for statement in statements]
            return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def _find(self, query: str) -> bool:
        return bool(self._watch.execute(query.encode()).fetchone())

    def copy(self) -> None:
        self._execute("postgres", "DROP DATABASE IF EXISTS copy WITH (FORCE)", "CREATE DATABASE copy TEMPLATE original")

    def dump(self) -> Dump:
        relations, functions = self._execute(
            "copy",
            "SELECT c.relkind, c.relname, string_agg(a.attname || ' ' || a.atttypid::regtype, ', ' ORDER BY a.attname) "
            "FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            f"WHERE c.relnamespace = '{SCHEMA}'::regnamespace GROUP BY 1, 2 ORDER BY 2",
            f"SELECT proname, md5(prosrc) FROM pg_proc WHERE pronamespace = '{SCHEMA}'::regnamespace ORDER BY 1, 2",
        )
        tables = [name for kind, name, _ in relations if kind in ("r", "S", b"r", b"S")]
        assert len(tables) > 10
        columns = {"migration": "version, name, checksum"}
        queries = [f"SELECT {columns.get(table, '*')} FROM {SCHEMA}.{table}" for table in tables]
        rows = [sorted(each, key=repr) for each in self._execute("copy", *queries)]
        return [relations, functions, *zip(tables, rows, strict=True)]

    @staticmethod
    def arm(step: Step) -> None:
        if step.kind != "statement":
            # The database waits there for a lock that the parent holds.
            os.environ["PGOPTIONS"] = f"-c kill.step={step.kind}-{step.number}"
            return
        statements, wait = count(1), psycopg.Connection.wait

        def counted(connection: Any, *arguments: Any, **options: Any) -> Any:
            if next(statements) == step.number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return wait(connection, *arguments, **options)

        psycopg.Connection.wait = counted  # type: ignore[method-assign]

    @contextmanager
    def paused(self, step: Step) -> Iterator[None]:
        with psycopg.connect(self._at("copy"), autocommit=True) as connection:
            connection.execute(f"SELECT pg_advisory_lock({PAUSE_LOCK})".encode())
            yield

    def reaches(self, opener: int, step: Step) -> bool:
        waiting = f"SELECT 1 FROM pg_locks WHERE objid = {PAUSE_LOCK} AND NOT granted"
        for _ in poll() if step.kind != "statement" else ():
            if self._find(waiting):
                return True
            if os.waitid(os.P_PID, opener, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        return super().reaches(opener, step)

    def settle(self) -> None:
        for _ in poll():
            if not self._find("SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock'"):
                return


def poll() -> Iterator[None]:
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    raise TimeoutError


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Rounds:
    """Kills the opening of one old store at its steps, one round for each."""

    def __init__(self, store: OldStore) -> None:
        self._store = store
        store.copy()
        self._before = store.dump()
        assert exit_code(forked(self._open)) == 0
        self._after = store.dump()
        assert self._before != self._after, "the store is not old"
        self.killed, self.old, self.new, self.rivals = 0, 0, 0, 0

    def _open(self) -> None:
        with closing(open_store(self._store.url)):
            pass

    def run(self, every: int) -> None:
        for kind in self._store.kinds:
            for number in count(1, 1 if kind == "commit" else every):
                if not self._round(Step(kind, number)):
                    break

    def _round(self, step: Step) -> bool:
        """Returns False if the process had opened the store before that step."""

        def open_and_stop() -> None:
            self._store.arm(step)
            self._open()

        self._store.copy()
        rival = None
        with self._store.paused(step):
            opener = forked(open_and_stop)
            if not self._store.reaches(opener, step):
                return False
            if self.killed % 3 == 2 and step.kind != "commit":
                rival = forked(self._open)
                time.sleep(RIVAL_SECONDS)
            os.kill(opener, signal.SIGKILL)
            os.waitpid(opener, 0)
        self.killed += 1
        self._store.settle()
        if rival is None:
            left = self._store.dump()
            assert left in (self._before, self._after), f"{step}: neither the old store nor the new one"
            self.old += left == self._before
            self.new += left == self._after
            rival = forked(self._open)
        else:
            self.rivals += 1
        assert exit_code(rival) == 0, f"{step}: the next process cannot open the store"
        self._store.settle()
        assert self._store.dump() == self._after, f"{step}: not what a migration in one go makes"
        return True


def run(kind: str, folder: Path, every: int) -> list[str]:
    """Return a line for each old schema."""
    lines = []
    newest = (sqlite_schema if kind == "sqlite" else postgres_schema).SCHEMA_VERSION
    cluster = None if kind == "sqlite" else Cluster()
    try:
        for version in (None, newest - 1):
            name = "0.1.0" if version is None else f"schema {version}"
            (folder / name).mkdir(parents=True)
            rounds = Rounds(OldFile(folder / name, version) if cluster is None else OldDatabase(cluster, version))
            rounds.run(every)
            lines.append(
                f"{name} on {kind}: killed {rounds.killed} times during the migration, with {rounds.rivals} rivals; "
                f"of the others {rounds.old} left the old schema, {rounds.new} the new one"
            )
            print(lines[-1], flush=True)
            assert rounds.killed >= STEPS_MIN // every
            assert rounds.old
            assert rounds.new
    finally:
        if cluster is not None:
            cluster.remove()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--every", type=int, default=1, help="kill at every n-th step only")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-migration-") as folder:
        for kind in ("sqlite", "postgresql") if chosen.store == "both" else (chosen.store,):
            run(kind, Path(folder) / kind, chosen.every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
