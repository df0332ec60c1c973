"""Connections to PostgreSQL: session settings, a pool, reconnecting after a loss, and mapping of errors."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import conninfo

from penstock.errors import (
    CannotOpen,
    Damaged,
    DiskFull,
    InvalidInput,
    PenstockError,
    ReadOnly,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreUnreachable,
)
from penstock.postgres.pipeline import PipelinedConnection

SCHEMA = "penstock"
SCHEMES = ("postgresql://", "postgres://")
VERSION_MIN = 140_000
CONNECT_SECONDS = 10
ANSWER_MS, ANSWER_MS_MIN, ANSWER_MS_MAX = 30_000, 100, 86_400_000
# First and longest delay between attempts to reconnect.
BACK_OFF_SECONDS = (0.05, 2.0)
# How long to try to find out whether a commit whose connection was lost took effect.
OUTCOME_SECONDS = 10.0
MAYBE = "it may have been committed: check before trying again"
ESCAPES = "in a password, write % as %25, / as %2F, ? as %3F, [ as %5B and @ as %40"
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

# Every statement uses an index. The planner may have seen a table while it was empty and must not choose a full scan,
# and compiling a plan takes longer than running it.
SETTINGS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
    "client_encoding": "UTF8",
    "idle_in_transaction_session_timeout": "60s",
}

# A role, a database or a cluster may turn it off. All other levels wait for the disk, and some for replicas too.
COMMIT_WAITS = (
    "set_config('synchronous_commit', CASE WHEN %s THEN 'off' WHEN current_setting('synchronous_commit') = 'off'"
    " THEN 'on' ELSE current_setting('synchronous_commit') END, false)"
)
UNSAFE_WHEN_OFF = {
    "fsync": "a crash of the database host can lose or corrupt everything",
    "full_page_writes": "a crash of the database host can corrupt pages that were being written",
}


class DatabaseTarget:
    """Address of a database and the schema to use in it."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        if not isinstance(url, str) or not url.startswith(SCHEMES):
            raise InvalidInput(
                "not a PostgreSQL URL", field="url", hint="use the form postgresql://user@host:port/database"
            )
        try:
            parts = urlsplit(url)
        except ValueError:
            raise InvalidInput("not a PostgreSQL URL", field="url", hint=ESCAPES) from None
        if "@" in parts.path:
            # An unescaped / in the password: the rest of it would pass for the database name and be shown.
            raise InvalidInput("not a PostgreSQL URL: an @ after the host", field="url", hint=ESCAPES)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        named = options.pop("schema", None)
        # How long to wait for a reply, in addition to the time spent waiting for locks.
        self.answer_ms = _milliseconds("answer_ms", options.pop("answer_ms", str(ANSWER_MS)))
        self.schema = schema or named or SCHEMA
        if not IDENTIFIER.fullmatch(self.schema):
            raise InvalidInput(
                f"{self.schema!r} is not a valid schema name", field="schema", hint="use letters, digits and _"
            )
        self.url = urlunsplit(parts._replace(query=urlencode(options)))
        try:
            known = conninfo.conninfo_to_dict(self.url)
        except psycopg.Error as error:
            reason = str(error).partition(":")[0]  # The rest may contain a part of the password.
            raise InvalidInput(f"not a PostgreSQL URL: {reason}", field="url", hint=ESCAPES) from None
        host, port, name = known.get("host", ""), known.get("port", ""), known.get("dbname", "")
        # The URL without user and password, for messages.
        self.shown = f"postgresql://{host}{f':{port}' if port else ''}/{name}"


def _milliseconds(name: str, text: str) -> int:
    if not text.isdecimal() or not ANSWER_MS_MIN <= int(text[:12]) <= ANSWER_MS_MAX:
        raise InvalidInput(f"{name} is {text[:80]!r}, must be from {ANSWER_MS_MIN} to {ANSWER_MS_MAX}", field=name)
    return int(text)


def connect(target: DatabaseTarget, *, busy_ms: int, relaxed: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        connection = psycopg.connect(
            target.url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, min(CONNECT_SECONDS, target.answer_ms // 1000)),
            application_name="penstock",
            keepalives_idle=30,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,
        )
    except psycopg.OperationalError as error:
        raise _cannot_connect(error, target) from error
    try:
        if connection.info.server_version < VERSION_MIN:
            version = connection.info.server_version // 10_000
            raise CannotOpen(f"PostgreSQL {version} is too old", hint="Penstock needs PostgreSQL 14 or newer")
        settings = SETTINGS | {"lock_timeout": f"{busy_ms}ms"}
        chosen = ", ".join("set_config(%s, %s, false)" for _ in settings)
        flat = [part for setting in settings.items() for part in setting]
        connection.execute(f"SELECT {chosen}, {COMMIT_WAITS}".encode(), [*flat, relaxed])
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise translate(error, target) from error
        raise
    return connection


def unsafe_settings(connection: psycopg.Connection[Any]) -> list[str]:
    """Return one warning for each setting that is off and keeps commits from surviving a crash.

    Only the administrator of the database server can change these.
    """
    rows = connection.execute(
        "SELECT name FROM pg_settings WHERE name = ANY(%s) AND setting = 'off' ORDER BY name", (list(UNSAFE_WHEN_OFF),)
    ).fetchall()
    return [f"PostgreSQL runs with {name} = off: {UNSAFE_WHEN_OFF[name]}" for (name,) in rows]


def _cannot_connect(error: psycopg.OperationalError, target: DatabaseTarget) -> StoreError:
    text = str(error).strip().splitlines()[-1] if str(error).strip() else "no connection"
    lowered = text.lower()
    if "does not exist" in lowered or "authentication" in lowered or "pg_hba" in lowered:
        return CannotOpen(f"cannot open {target.shown}: {text}", hint="check user, password and database")
    return StoreUnreachable(f"no connection to {target.shown}: {text}", maybe_done=False)


def server_start_id(connection: psycopg.Connection[Any]) -> str:
    """Return an id that changes when the database crashes or restarts.

    A crash that the postmaster survives resets the statistics, so their reset time is part of it.
    """
    (start_id,) = connection.execute(
        "SELECT concat(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))"
    ).fetchone() or ("",)
    return str(start_id)


def is_lost(error: BaseException) -> bool:
    """Return True if the connection failed and not the statement."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(("08", "57P"))


def translate(error: psycopg.Error, target: DatabaseTarget, *, maybe_done: bool = False) -> PenstockError:
    state = error.sqlstate or ""
    text = f"{target.shown}: {str(error).strip() or 'the connection was lost'}"
    if is_lost(error):
        hint = MAYBE if maybe_done else "nothing of this request was kept; try again"
        return StoreUnreachable(text, maybe_done=maybe_done, hint=hint)
    if state in ("55P03", "40P01", "40001"):
        return StoreBusy(text, hint="end the transaction that holds the lock")
    if state in ("53100", "53200"):
        return DiskFull(text, hint="free some space on the database host; nothing of this request was kept")
    if state in ("25006", "42501"):
        return ReadOnly(text, hint="connect to the primary, as a user with write access to the schema")
    if state in ("XX001", "XX002"):
        return Damaged(text, hint="restore a backup of the database")
    if state in ("42P01", "3F000"):
        return CannotOpen(text, hint="the schema was dropped while it was in use: open the store again")
    if state == "22021":
        return InvalidInput("a text contains a NUL character, which PostgreSQL cannot store", hint="remove it")
    return StoreError(text)


class Pool:
    """A pool of connections, each used by one thread at a time.

    After a loss it backs off before it reconnects, and until then callers get the error at once instead of waiting.
    """

    def __init__(self, open_one: Callable[[], PipelinedConnection], size: int, where: str) -> None:
        self._open_one = open_one
        self._size = size
        self._where = where
        self._back_off = 0.0
        self._not_before = 0.0
        self._last_error = ""
        self.closed = False
        self.start_over()

    def start_over(self) -> None:
        """Forget all connections without closing them: in a forked child they belong to the parent."""
        self._changed = threading.Condition()
        self._idle: list[PipelinedConnection] = []
        self._open = 0

    @contextmanager
    def wire(self) -> Generator[PipelinedConnection, None, None]:
        wire = self.acquire()
        try:
            yield wire
        finally:
            self.release(wire)

    def acquire(self) -> PipelinedConnection:
        while not (wire := self._acquire()).is_alive():
            wire.close()
            self.release(wire)
        return wire

    def _acquire(self) -> PipelinedConnection:
        with self._changed:
            while not self._idle and self._open >= self._size and not self.closed:
                self._changed.wait()
            self.check_open()
            if self._idle:
                return self._idle.pop()
            if time.monotonic() < self._not_before:
                raise StoreUnreachable(self._last_error, maybe_done=False)
            self._open += 1
        try:
            wire = self._open_one()
        except BaseException as error:
            with self._changed:
                self._open -= 1
                self._changed.notify()
                if isinstance(error, StoreUnreachable):
                    self._failed(error)
            raise
        with self._changed:
            self._back_off = 0.0
        return wire

    def _failed(self, error: StoreUnreachable) -> None:
        first, longest = BACK_OFF_SECONDS
        self._back_off = min(max(first, self._back_off * 2), longest)
        self._not_before = time.monotonic() + self._back_off
        self._last_error = str(error.args[0])

    def release(self, wire: PipelinedConnection) -> None:
        usable = not (wire.broken or wire.in_transaction or wire.needs_recycle)
        with self._changed:
            if usable and not self.closed:
                self._idle.append(wire)
            else:
                self._open -= 1
                usable = False
            self._changed.notify()
        if not usable:
            wire.close()

    def drop_idle(self) -> None:
        """Close the idle connections: after one was lost, the others very likely are too."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._changed.notify_all()
        for wire in idle:
            wire.close()

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store on {self._where} has been closed", hint="open it again")

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self.drop_idle()
