"""What both kinds of connection share: where to, what can go wrong, and how to end one from outside."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from msgspec import Struct

IDLE_SECONDS_MAX = 60.0
"""A server closes a connection that idles for 75 s; one used just then would fail."""


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: ssl.SSLContext | None = None


class RequestFailed(Exception):
    """Refused, cut or too late. `sent`: the server may have done what was asked."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Interrupt:
    """Ends a request from outside, by closing its connection: the server then knows that nobody listens."""

    def __init__(self) -> None:
        self.triggered = False
        self._abort: Callable[[], None] | None = None

    def trigger(self) -> None:
        self.triggered = True
        abort = self._abort
        if abort is not None:
            abort()

    def arm(self, abort: Callable[[], None] | None) -> None:
        self._abort = abort
        if self.triggered and abort is not None:
            abort()
