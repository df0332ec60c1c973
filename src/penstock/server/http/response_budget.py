"""Limits the bytes of large responses that clients have not read yet, per credential and for the whole server."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.model import LEASE_BYTES_MAX
from penstock.wire.http_errors import HttpError

SERVER_BYTES_MAX = 256 << 20
CREDENTIAL_BYTES_MAX = SERVER_BYTES_MAX // 2
SMALL_BYTES = 64 << 10
TRIM_BYTES = 32 << 20


class ResponseBudget:
    """Counts the bytes of large responses from when they are ready until they are sent or the connection is lost."""

    def __init__(self) -> None:
        self.total = 0
        self._by_credential: Counter[str] = Counter()
        self._since_trim = 0

    def check(self, credential: str, size: int = LEASE_BYTES_MAX) -> None:
        """Raise if a response of this size, or the largest possible one, would exceed the budget."""
        if self.total + size > SERVER_BYTES_MAX and self.total:
            raise _no_room(503, "too many unread responses on this server")
        if self._by_credential[credential] + size > CREDENTIAL_BYTES_MAX and self._by_credential[credential]:
            raise _no_room(429, "too many unread responses for this credential")

    @contextmanager
    def holding(self, credential: str, size: int) -> Iterator[None]:
        self.total += size
        self._by_credential[credential] += size
        try:
            yield
        finally:
            self.total -= size
            self._by_credential[credential] -= size
            self._since_trim += size
            if not self._by_credential[credential]:
                del self._by_credential[credential]

    def trim(self) -> None:
        """Return memory to the system after large responses: glibc would keep it."""
        if self._since_trim > TRIM_BYTES and self.total < TRIM_BYTES:
            self._since_trim = 0
            _trim_memory(0)


def _no_room(status: int, reason: str) -> HttpError:
    return HttpError(
        status, "unread_answers", reason, hint="read them, or request smaller batches", headers={"retry-after": "1"}
    )


# Only glibc has malloc_trim, and only glibc needs it.
_trim_memory = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)
