"""Errors that exist only at the HTTP layer."""

from __future__ import annotations

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
