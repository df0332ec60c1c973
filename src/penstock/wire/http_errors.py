"""Errors that only HTTP knows."""

from __future__ import annotations

from penstock.errors import PenstockError


class HttpError(PenstockError):
    """A request that is refused, with the status that says so."""

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
    """The client has gone; there is nobody to answer."""
