"""Shared by both kinds of connection: the address, the error, and the interrupt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import ssl

# Shorter than the server's idle timeout of 75 s: a request on a connection that is being closed would fail.
IDLE_SECONDS_MAX = 60.0


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: ssl.SSLContext | None = None


class RequestFailed(Exception):
    """A request failed or timed out. `sent`: the server may have executed it."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Interrupt:
    """Ends a request from outside by closing its connection, which also ends it at the server."""

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
