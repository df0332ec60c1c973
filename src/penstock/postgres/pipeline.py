"""Runs several statements on one connection in a single round trip.

The cursors of psycopg take about as much processor time as PostgreSQL takes for a short statement. So this module calls
its libpq wrapper directly and encodes parameters in binary itself.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, pq
from psycopg.adapt import Transformer

Row = tuple[Any, ...]
Rows = list[Row]
Param = bytes | bytearray | memoryview | None
FAILED = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE, pq.ExecStatus.NONFATAL_ERROR})
# Statements prepared on one connection; beyond that the connection is replaced.
STATEMENTS_MAX = 1_000
INT8_OID, BYTEA_OID, TEXT_OID = 20, 17, 25
NULL = (-1).to_bytes(4, "big", signed=True)

_int8 = struct.Struct(">q").pack
_float8 = struct.Struct(">d").pack
_array = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack


NO_INTS = _array(0, 0, INT8_OID, 0, 1)[:12]
# What precedes the value in an array of one.
ONE_INT = _array(1, 0, INT8_OID, 1, 1) + _length(8)


def ints(values: Iterable[int]) -> bytes:
    values = list(values)
    count = len(values)
    if count == 1:
        return ONE_INT + _int8(values[0])
    if not count:
        return NO_INTS
    flat = [8] * (2 * count)
    flat[1::2] = values
    return _array(1, 0, INT8_OID, count, 1) + struct.pack(">" + "iq" * count, *flat)


def ints_or_nulls(values: Sequence[int | None]) -> bytes:
    """Encode an array; an empty one if all are NULL, which means the same in an unnest with longer arrays."""
    if values.count(None) == len(values):
        return NO_INTS
    parts = [NULL if value is None else b"\0\0\0\x08" + _int8(value) for value in values]
    return _array(1, 1, INT8_OID, len(parts), 1) + b"".join(parts)


def texts(values: Sequence[str | None]) -> bytes:
    return _parts([None if value is None else value.encode() for value in values], TEXT_OID)


def blobs(values: Sequence[bytes | None]) -> bytes:
    return _parts(values, BYTEA_OID)


def _parts(values: Sequence[bytes | None], oid: int) -> bytes:
    if values.count(None) == len(values):
        return _array(0, 0, oid, 0, 1)[:12]
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(NULL)
        else:
            parts.append(_length(len(value)))
            parts.append(value)
    return _array(1, 1, oid, len(values), 1) + b"".join(parts)


def encode(value: Any) -> Param:
    """Encode one parameter in binary. Arrays are passed as bytes, already encoded."""
    if value is None or type(value) is bytes:
        return value
    if type(value) is int:
        return _int8(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"\1" if value else b"\0"
    if isinstance(value, float):
        return _float8(value)
    return bytes(value)


class Statement(NamedTuple):
    sql: bytes
    params: Sequence[Any] = ()
    then: Callable[[Rows], None] | None = None
    """Called with the rows."""
    needed: bool = True
    """False if the outcome is complete without `then`, as for statistics."""


class PipelinedConnection:
    """A connection that pipelines statements. Not safe for concurrent threads."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        keeps_prepared: bool = True,
        server_start_id: str = "",
        answer_ms: int | None = None,
    ) -> None:
        """With `keeps_prepared`, statements are prepared once and reused.

        A connection without a reply for `answer_ms` during a request is abandoned.
        """
        self.connection = connection
        self.answer_ms = answer_ms
        self.server_start_id = server_start_id
        self._keeps_prepared = keeps_prepared
        self._pq = connection.pgconn
        self._names: dict[bytes, bytes] = {}
        self._prepared = 0
        self._transformer = Transformer(connection)
        self._ready, self._ready_or_room = select.poll(), select.poll()
        self._ready.register(self._pq.socket, select.POLLIN)
        self._ready_or_room.register(self._pq.socket, select.POLLIN | select.POLLOUT)

    @property
    def broken(self) -> bool:
        return bool(self._pq.status != pq.ConnStatus.OK)

    def is_alive(self) -> bool:
        """Return False if the server has closed this connection: a commit sent to it would have no known outcome."""
        try:
            # The server's last message comes before the end of the stream.
            while self._ready.poll(0) and not self.broken:
                self._pq.consume_input()
        except psycopg.Error:
            return False
        return not self.broken

    @property
    def needs_recycle(self) -> bool:
        return self._prepared > STATEMENTS_MAX

    @property
    def in_transaction(self) -> bool:
        return bool(self._pq.transaction_status != pq.TransactionStatus.IDLE)

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run all statements in one round trip; raise the first error after all replies have arrived."""
        if not statements:
            return []
        try:
            if len(statements) == 1 and statements[0].sql in self._names:
                return self._run_one(statements[0])
            self._pq.enter_pipeline_mode()
            expected: list[Statement | None] = []
            new: list[bytes] = []
            for statement in statements:
                sql, params = statement.sql, [encode(value) for value in statement.params]
                if self._keeps_prepared:
                    if sql not in self._names:
                        self._prepare(sql)
                        expected.append(None)
                        new.append(sql)
                    self._pq.send_query_prepared(self._names[sql], params, [1] * len(params), 1)
                else:
                    self._pq.send_query_params(sql, params, None, [1] * len(params), 1)
                expected.append(statement)
            self._pq.pipeline_sync()
            self._flush()
            return self._collect(expected, new)
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def _prepare(self, sql: bytes) -> None:
        self._prepared += 1
        self._names[sql] = b"penstock_%d" % self._prepared
        self._pq.send_prepare(self._names[sql], sql)

    def _run_one(self, statement: Statement) -> list[Rows]:
        """Run a single prepared statement without a pipeline, which saves calls and one reply."""
        params = [encode(value) for value in statement.params]
        self._pq.send_query_prepared(self._names[statement.sql], params, [1] * len(params), 1)
        self._flush()
        result = last = self._receive()
        while last is not None:
            last = self._receive()
        if result is None or self.broken:
            raise psycopg.OperationalError("the connection was lost")
        if result.status in FAILED:
            raise errors.error_from_result(result)
        rows = self._rows(result)
        if statement.then is not None:
            statement.then(rows)
        return [rows]

    def _flush(self) -> None:
        """Send everything. Reads input as well: the server may stop reading until its own output is consumed."""
        while self._pq.flush():
            if any(events & select.POLLIN for _, events in self._wait(self._ready_or_room)):
                self._pq.consume_input()

    def _wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """Wait for the socket. libpq's own wait would hold the interpreter lock and stop all other threads."""
        events = poll.poll(self.answer_ms)
        if not events:
            self.connection.close()
            raise psycopg.OperationalError(f"no answer for {self.answer_ms} ms")
        return events

    def _raise_if_lost(self, error: psycopg.Error) -> None:
        if self.broken and error.sqlstate is None:
            raise psycopg.OperationalError(f"the connection was lost ({error})") from error

    def _receive(self) -> pq.abc.PGresult | None:
        while self._pq.is_busy():
            self._pq.consume_input()
            if self._pq.is_busy():
                self._wait(self._ready)
        return self._pq.get_result()

    def _collect(self, expected: list[Statement | None], new: list[bytes]) -> list[Rows]:
        """Read the replies of a pipeline."""
        receive = self._receive
        answers: list[Rows] = []
        error: psycopg.Error | None = None
        for statement in expected:
            result = receive()
            if result is None:
                raise psycopg.OperationalError("the connection was lost")
            if result.status in FAILED:
                error = error or errors.error_from_result(result)
            elif statement is not None and error is None:
                answers.append(self._rows(result))
            while receive() is not None:
                pass
            if self.broken:
                raise psycopg.OperationalError("the connection was lost")
        result = receive()
        if result is not None and result.status in FAILED:
            # The commit of a transaction without BEGIN failed.
            error = error or errors.error_from_result(result)
            receive()
            result = receive()
        if result is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the connection was lost")
        self._pq.exit_pipeline_mode()
        if error is not None:
            for sql in new:
                # Some of them were prepared before the error, some not: all get new names.
                self._names.pop(sql, None)
            raise error
        for statement, rows in zip((each for each in expected if each is not None), answers, strict=True):
            if statement.then is not None:
                statement.then(rows)
        return answers

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def close(self) -> None:
        self.connection.close()


class Restart(Exception):
    """Raised when a cached queue turned out to be outdated; the batch is executed again from the start."""
