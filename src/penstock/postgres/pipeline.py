"""Runs several statements on one connection in a single round trip.

The cursors of psycopg take about as much processor time as PostgreSQL takes for a short statement. So this module calls
its libpq wrapper directly and encodes parameters in binary itself.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Generator, Iterable, Sequence
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


def ints(values: Iterable[int]) -> bytes:
    values = list(values)
    count = len(values)
    if not count:
        return _array(0, 0, INT8_OID, 0, 1)[:12]
    flat = [8] * (2 * count)
    flat[1::2] = values
    return _array(1, 0, INT8_OID, count, 1) + struct.pack(">" + "iq" * count, *flat)


def ints_or_nulls(values: Sequence[int | None]) -> bytes:
    """Encode an array; an empty one if all are NULL, which means the same in an unnest with longer arrays."""
    if not any(value is not None for value in values):
        return ints(())
    parts = [NULL if value is None else b"\0\0\0\x08" + _int8(value) for value in values]
    return _array(1, 1, INT8_OID, len(parts), 1) + b"".join(parts)


def texts(values: Sequence[str | None]) -> bytes:
    return _parts([None if value is None else value.encode() for value in values], TEXT_OID)


def blobs(values: Sequence[bytes | None]) -> bytes:
    return _parts(values, BYTEA_OID)


def _parts(values: Sequence[bytes | None], oid: int) -> bytes:
    if not any(value is not None for value in values):
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
    def socket(self) -> int:
        return int(self._pq.socket)

    @property
    def broken(self) -> bool:
        return bool(self._pq.status != pq.ConnStatus.OK)

    @property
    def needs_recycle(self) -> bool:
        return self._prepared > STATEMENTS_MAX

    @property
    def in_transaction(self) -> bool:
        return bool(self._pq.transaction_status != pq.TransactionStatus.IDLE)

    def check(self) -> None:
        """Raise an error if the server has already closed the connection, before anything is sent."""
        while not self.broken and self._ready.poll(0):
            self._pq.consume_input()  # The server's last message precedes the end of input, which is an error.
        if self.broken:
            raise psycopg.OperationalError("the connection was lost")

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run all statements in one round trip; raise the first error after all replies have arrived."""
        if not statements:
            return []
        self.start(statements)
        while not self.flush():
            self._poll(self._ready_or_room)
        # The wait of libpq would hold the interpreter lock and stop all other threads.
        while (answers := self.receive()) is None:
            self._poll(self._ready)
        return answers

    def _poll(self, events: select.poll) -> None:
        if not events.poll(self.answer_ms):
            raise self.abandon()

    def abandon(self) -> psycopg.OperationalError:
        """Close a connection that stopped responding, and return the error to raise."""
        self.connection.close()
        return psycopg.OperationalError(f"the connection was lost (no answer for {self.answer_ms} ms)")

    def start(self, statements: Sequence[Statement]) -> None:
        """Send the statements: the first of the three steps of `run`, none of which blocks."""
        try:
            if len(statements) == 1 and (name := self._names.get(statements[0].sql)) is not None:
                self._execute(name, statements[0])
                self._answers = self._collect_one(statements[0])
                return
            self._pq.enter_pipeline_mode()
            expected: list[Statement | None] = []
            new: list[bytes] = []
            for statement in statements:
                self._send(statement, expected, new)
            self._pq.pipeline_sync()
            self._answers = self._collect(expected, new)
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def flush(self) -> bool:
        """Send more, and return True when everything is sent.

        Reads input as well, because the server may stop reading until its own output is consumed.
        """
        try:
            if not self._pq.flush():
                return True
            if any(events & select.POLLIN for _, events in self._ready_or_room.poll(0)):
                self._pq.consume_input()
            return False
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def receive(self) -> list[Rows] | None:
        """Return the rows of all statements, or None while replies are missing."""
        try:
            if self._pq.is_busy():
                self._pq.consume_input()
            next(self._answers)
            return None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def _raise_if_lost(self, error: psycopg.Error) -> None:
        if self.broken and error.sqlstate is None:
            raise psycopg.OperationalError(f"the connection was lost ({error})") from error

    def _send(self, statement: Statement, expected: list[Statement | None], new: list[bytes]) -> None:
        if not self._keeps_prepared:
            params = [encode(value) for value in statement.params]
            self._pq.send_query_params(statement.sql, params, None, [1] * len(params), 1)
            expected.append(statement)
            return
        name = self._names.get(statement.sql)
        if name is None:
            self._prepared += 1
            name = self._names[statement.sql] = b"penstock_%d" % self._prepared
            self._pq.send_prepare(name, statement.sql)
            expected.append(None)
            new.append(statement.sql)
        self._execute(name, statement)
        expected.append(statement)

    def _execute(self, name: bytes, statement: Statement) -> None:
        params = [encode(value) for value in statement.params]
        self._pq.send_query_prepared(name, params, [1] * len(params), 1)

    def _receive(self) -> Generator[None, None, pq.abc.PGresult | None]:
        while self._pq.is_busy():
            yield
        return self._pq.get_result()

    def _collect(self, expected: list[Statement | None], new: list[bytes]) -> Generator[None, None, list[Rows]]:
        """Read the replies of a pipeline; yields when more input is needed."""
        receive = self._receive
        answers: list[Rows] = []
        error: psycopg.Error | None = None
        for statement in expected:
            result = yield from receive()
            if result is None:
                raise psycopg.OperationalError("the connection was lost")
            if result.status in FAILED:
                error = error or errors.error_from_result(result)
            elif statement is not None and error is None:
                answers.append(self._rows(result))
            while (yield from receive()) is not None:
                pass
            if self.broken:
                raise psycopg.OperationalError("the connection was lost")
        result = yield from receive()
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

    def _collect_one(self, statement: Statement) -> Generator[None, None, list[Rows]]:
        """Read the reply of a single statement, sent without a pipeline to save calls and one reply."""
        while self._pq.is_busy():
            yield
        result = self._pq.get_result()
        last = result
        while last is not None:
            while self._pq.is_busy():
                yield
            last = self._pq.get_result()
        if result is None or self.broken:
            raise psycopg.OperationalError("the connection was lost")
        if result.status in FAILED:
            raise errors.error_from_result(result)
        rows = self._rows(result)
        if statement.then is not None:
            statement.then(rows)
        return [rows]

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def close(self) -> None:
        self.connection.close()


class Restart(Exception):
    """Raised when a cached queue turned out to be outdated; the batch is executed again from the start."""
