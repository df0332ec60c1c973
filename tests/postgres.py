"""Runs PostgreSQL for the tests: one server per test process, started on first use, and one schema per test."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tools import provision

START_SECONDS_MAX = 60.0
_schemas = itertools.count(1)


def programs() -> Path:
    """Return the folder of PostgreSQL's programs: PENSTOCK_POSTGRES_BIN, or the one that provisioning chose."""
    return Path(os.environ.get("PENSTOCK_POSTGRES_BIN") or json.loads(provision.CHOICE.read_text())["postgres"]["bin"])


class Cluster:
    """A PostgreSQL server with its own folder and Unix socket. Without `synced` it runs faster, with fsync off."""

    def __init__(self, *, synced: bool = False, start: bool = True, **settings: str) -> None:
        self._bin = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        if os.geteuid() == 0:
            os.chown(self.folder, *provision.nobody())
        self.data = self.folder / "data"
        self._synced = synced
        self.environment: dict[str, str] = {}
        self._settings = settings
        self._initdb()
        if start:
            self.start()

    def _initdb(self) -> None:
        initdb: list[str | Path] = [
            self._bin / "initdb",
            "-D",
            self.data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "--locale=C",
            "-E",
            "UTF8",
        ]
        provision.run([*initdb, "--no-sync"], str(self.folder))

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        settings = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "fsync": "on" if self._synced else "off",
            "full_page_writes": "on" if self._synced else "off",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.data, *options],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | self.environment,
            **provision.unprivileged(),
        )
        log.close()
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: immediately with SIGQUIT, or with a fast shutdown on SIGINT."""
        self.process.send_signal(how)
        self.process.wait()

    def remove(self) -> None:
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def cluster() -> Cluster:
    found = Cluster()
    owner = os.getpid()
    atexit.register(lambda: found.remove() if os.getpid() == owner else None)
    return found


def new_schema() -> str:
    return f"t{os.getpid()}_{next(_schemas)}"


def drop_schema(schema: str) -> None:
    with psycopg.connect(cluster().url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
