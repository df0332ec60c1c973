"""Sends requests to a server: retries where that is safe, and raises the server's errors as exceptions."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec

from penstock.client._async.retry import Retry
from penstock.client.batches import ACCEPT_BINARY, BatchBody, BatchDecoder, is_binary
from penstock.client.connection_async import Connections
from penstock.client.http11 import HttpResponse, encode_request
from penstock.client.response_errors import error_of, retry_after_ms
from penstock.client.transport_errors import Interrupt, RequestFailed
from penstock.core.redact import without_password
from penstock.errors import (
    InvalidInput,
    QueueFull,
    RateLimited,
    ServerFault,
    StoreClosed,
    TryLater,
    Unreachable,
)
from penstock.wire.binary_batches import MSGPACK

log = logging.getLogger("penstock.client")
T = TypeVar("T")
# A proxy did not get the response of the server, which may have executed the request.
GATEWAY_ERRORS = (502, 504)
MAYBE = "an earlier attempt whose response was lost may have succeeded"


class Session:
    def __init__(
        self,
        connections: Connections,
        *,
        where: str,
        base_path: str,
        headers: bytes,
        timeout: float,
        connect_timeout: float,
        retry_for: float,
    ) -> None:
        self.connections = connections
        self.where = where
        self.base_path = base_path
        self.headers = headers
        self.timeout = timeout
        self._connect_timeout = connect_timeout
        self._retry_for = retry_for
        self._is_lost = False
        # None until a response tells that the server knows binary batches; False once a server refused one.
        self._sends_binary: bool | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        queue: str | None = None,
        wait_seconds: float = 0.0,
        retry_for: float | None = None,
        repeatable: bool = True,
        patient: bool = False,
        share: bool = False,
        interrupt: Interrupt | None = None,
        headers: bytes = b"",
        content_type: bytes = b"application/json",
    ) -> tuple[HttpResponse, bool]:
        """Return the response, and whether an earlier attempt may have succeeded as well.

        `repeatable`: the request is idempotent. `patient`: keep trying to reach the server for `retry_for`. `share`:
        raise QueueFull and RateLimited at once, for the caller to try with fewer messages. `headers` precede those of
        every request. A body of bytes is sent as it is.
        """
        headers += self.headers
        sends_binary = isinstance(body, BatchBody) and self._sends_binary is True
        if sends_binary:
            content_type = MSGPACK
        request = encode_request(
            method, self.base_path + path, headers, _body(method, body, sends_binary), content_type
        )
        retry_seconds = self._retry_for if retry_for is None else retry_for
        retry = Retry(retry_seconds)
        reach = retry if patient else Retry(min(self._connect_timeout, retry_seconds))
        repeated = False
        while True:
            answer = await self._try(request, self.timeout + wait_seconds, interrupt)
            if isinstance(answer, RequestFailed):
                repeated = repeated or answer.sent
                lost = Unreachable(f"{self.where} is unreachable: {answer}", maybe_done=repeated)
                if self.connections.closed:
                    closed = StoreClosed("the client is closed")
                    closed.maybe_done = repeated
                    raise closed
                interrupted = interrupt is not None and interrupt.triggered
                if interrupted or (repeated and not repeatable):
                    raise lost
                await (retry if repeated else reach).wait(lost, self._log_lost)
                continue
            self._is_lost = False
            if answer.status < 300:
                if self._sends_binary is None and is_binary(answer):
                    self._sends_binary = True
                return answer, repeated
            if answer.status < 400:
                raise self._redirected(answer)
            if answer.status == 415 and sends_binary:  # An older server, which has not read the body.
                self._sends_binary = sends_binary = False
                request = encode_request(method, self.base_path + path, headers, _body(method, body, False))
                continue
            error = error_of(answer, queue, self.where)
            if error.maybe_done or answer.status in GATEWAY_ERRORS:
                error.maybe_done = repeated = True
                if not repeatable:
                    raise error
            if repeated and _is_transient(answer.status):
                error.maybe_done, error.hint = True, MAYBE
            if share and isinstance(error, QueueFull | RateLimited):
                raise error
            if isinstance(error, TryLater):
                await retry.wait(error)
            elif answer.status == 503 or answer.status in GATEWAY_ERRORS:
                await retry.wait(error, after_ms=retry_after_ms(answer))
            else:
                raise error

    def _redirected(self, answer: HttpResponse) -> InvalidInput:
        """Return the error for a redirect, which is not followed: the token would go to another host."""
        target = without_password(answer.headers.get(b"location", b"").decode("latin-1"))
        return InvalidInput(
            f"{self.where} redirects to {target!r}", field="url", hint="use that address if you trust it"
        )

    def _log_lost(self, lost: Exception, seconds: float) -> None:
        """Log an outage once, however many calls it affects."""
        if not self._is_lost:
            self._is_lost = True
            log.warning("%s; retrying for up to %g s", lost, round(seconds, 1))

    async def _try(self, request: bytes, seconds: float, interrupt: Interrupt | None) -> HttpResponse | RequestFailed:
        try:
            return await self.connections.request(request, seconds, interrupt)
        except RequestFailed as failure:
            return failure

    async def get_batch(
        self, kind: BatchDecoder[T], method: str, path: str, body: Any = None, **how: Any
    ) -> tuple[T, bool]:
        """Return the batch, and whether an earlier attempt may have succeeded as well."""
        answer, repeated = await self.request(method, path, body, headers=ACCEPT_BINARY, **how)
        try:
            return kind.decode(answer), repeated
        except ValueError as error:
            raise self._undecodable(answer, error) from None

    async def get(self, kind: msgspec.json.Decoder[T], method: str, path: str, body: Any = None, **how: Any) -> T:
        answer, _ = await self.request(method, path, body, **how)
        return self.read(kind, answer)

    def read(self, kind: msgspec.json.Decoder[T], answer: HttpResponse) -> T:
        try:
            return kind.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise self._undecodable(answer, error) from None

    def _undecodable(self, answer: HttpResponse, error: Exception) -> ServerFault:
        return ServerFault(
            f"cannot decode the response of {self.where}: {error}",
            status=answer.status,
            hint="is that a Penstock server of this version?",
        )

    async def close(self) -> None:
        await self.connections.close()


def _is_transient(status: int) -> bool:
    """Return True for errors after which an earlier attempt may still have succeeded."""
    return status == 429 or status >= 500


def _body(method: str, body: Any, sends_binary: bool) -> bytes | None:
    if isinstance(body, bytes):
        return body
    if body is not None:
        try:
            if isinstance(body, BatchBody):
                return body.binary() if sends_binary else msgspec.json.encode(body.json())
            return msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"cannot encode the request: {error}") from None
    return b"" if method == "POST" else None
