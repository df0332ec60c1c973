"""Errors that exist only at the HTTP layer, and the JSON schema of every error."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import PenstockError


class HttpError(PenstockError):
    """A request error with its HTTP status."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.field = field
        self.headers = headers or {}


class Disconnected(Exception):
    """The client has disconnected, so no response can be sent."""


class ErrorPlace(Struct):
    offset: int
    segment: str
    position: int | None


class Problem(Struct, omit_defaults=True):
    """The body of every error response."""

    error: str
    code: str
    hint: str | None = None
    field: str | None = None
    place: ErrorPlace | None = None
    """Location of a damaged record."""
    maybe_done: bool = False
    """True if the request may have been executed despite the error."""
