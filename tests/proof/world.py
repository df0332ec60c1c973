"""Runs servers on one store, each behind its own relay, with injectable disk faults and clock changes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from penstock.journal.drainer import journal_folder
from tests.conformance.postgres_support import Tables
from tests.conformance.recount import check_tables
from tests.conformance.replay import check_journal
from tests.crash.relay import Relay
from tests.integration.serving import Process
from tests.postgres import START_SECONDS_MAX, Cluster
from tests.proof.disk import Disk, Trace, compiler

HEALED_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 60.0
# The number of servers that share one PostgreSQL.
SERVERS = 2
QUIET: dict[str, object] = {"canary_ms": 0, "sweep_ms": 200}


class Server:
    """A `penstock serve` process that keeps its port across restarts."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self._folder, self._flags, self._env = folder, flags, env
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.line = Relay(self.port)
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.line.port}"

    @property
    def pid(self) -> int:
        return self._process.process.pid

    def start(self) -> None:
        self._process = Process(self._folder, *self._flags, "--port", str(self.port), "--no-access-log", env=self._env)

    def kill(self) -> None:
        self._process.close()

    def terminate(self) -> int:
        return self._process.terminate(STOP_SECONDS_MAX)

    def signal(self, number: signal.Signals) -> None:
        self._process.process.send_signal(number)

    def is_ready(self) -> bool:
        try:
            with self._process.client() as client:
                return client.get("/readyz").status == 200
        except OSError:
            return False

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.kill()
        self.line.close()


def as_environment(settings: dict[str, object]) -> dict[str, str]:
    return {f"PENSTOCK_{name.upper()}": str(value) for name, value in (QUIET | settings).items()}


class World:
    """Servers and their store; the base class for both kinds of store."""

    store: str
    servers: list[Server]
    disk: Disk | None = None
    """None if no faults are to be injected or there is no C compiler."""
    trace: Trace | None = None
    direct_url: str | None = None
    """The URL for clients that use the store without a server; None if the store does not allow that."""

    def wait_until_healed(self) -> None:
        deadline = time.monotonic() + HEALED_SECONDS_MAX
        while not all(server.is_ready() for server in self.servers):
            if time.monotonic() > deadline:
                raise AssertionError(f"a server on {self.store} did not become ready again")
            time.sleep(0.05)

    def power_cut(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Check that the counters equal a recount and that the journal is complete. No client may use the store."""
        raise NotImplementedError

    def close(self) -> None:
        for server in self.servers:
            server.close()


class SqliteWorld(World):
    store = "sqlite"

    def __init__(self, folder: Path, chance: random.Random, *, faulty: bool = True, **settings: object) -> None:
        """Start a server; with `faulty`, on a disk that can fail."""
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        if faulty and compiler():
            self.disk = Disk(self._data, folder, traced=True)
            self.trace = Trace(self.disk, chance)
        env = as_environment(settings) | (self.disk.environment if self.disk is not None else {})
        self.servers = [Server(folder / "server", "--data", str(self._data), env=env)]

    def power_cut(self) -> None:
        assert self.trace is not None
        (server,) = self.servers
        server.kill()
        self.trace.cut()
        server.start()

    def check(self) -> None:
        path = self._data / "penstock.db"
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            check_tables(db)
            check_journal(db, journal_folder(path))


class PostgresWorld(World):
    store = "postgresql"

    def __init__(self, folder: Path, chance: random.Random, *, faulty: bool = True, **settings: object) -> None:
        self.database = Cluster(synced=True, start=False)
        env = as_environment(settings)
        if faulty and compiler():
            # PostgreSQL panics if it has no space for its own WAL.
            self.disk = Disk(self.database.data, self.database.folder, traced=True, roomy="pg_wal")
            self.trace = Trace(self.disk, chance)
            self.database.environment = self.disk.environment
            env |= {name: value for name, value in self.disk.environment.items() if name != "PROOF_TRACE"}
        self.lines: list[Relay] = []
        self.servers = []
        try:
            self.database.start()
            self.direct_url = self.database.url
            for number in range(SERVERS):
                self.lines.append(Relay(self.database.folder))
                self.servers.append(Server(folder / f"server{number}", "--store", self.lines[-1].url, env=env))
        except BaseException:
            self.close()
            raise

    def stop_database(self, how: signal.Signals | None) -> None:
        """Send a signal to PostgreSQL's main process; None kills all its processes at once, like a power cut."""
        if how is not None:
            self.database.stop(how)
            return
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.database.process.wait()

    def _processes(self) -> list[psutil.Process]:
        """Return all processes of PostgreSQL, after suspending the main one so that it starts no more."""
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.database.process.pid)
            main.suspend()
            return [*main.children(recursive=True), main]
        return []

    def start_database(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.database.start()
                return
            except RuntimeError:
                # Processes of the killed server may still be running.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def restart_database(self, how: signal.Signals) -> None:
        self.stop_database(how)
        self.start_database()

    def power_cut(self) -> None:
        assert self.trace is not None
        self.stop_database(None)
        self.trace.cut()
        self.start_database()

    def wait_until_healed(self) -> None:
        if self.database.process.poll() is not None:
            self.start_database()
        super().wait_until_healed()

    def check(self) -> None:
        with closing(Tables(self.database.url, "penstock")) as tables:
            # A killed server's last transactions may still be in progress, so every query reads one snapshot.
            tables.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            check_tables(tables, busy_exactly=False)

    def close(self) -> None:
        super().close()
        for line in self.lines:
            line.close()
        if self.database.process.poll() is None:
            self.stop_database(None)
        self.database.remove()


WORLDS: dict[str, Any] = {"sqlite": SqliteWorld, "postgresql": PostgresWorld}
