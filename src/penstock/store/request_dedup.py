"""Deduplication of requests: a client that repeats one gets the result of the first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

# Prefix of stored request keys. User keys are printable, so none begins with a control character.
REQUEST_KEY = "\x1f"
REQUEST_WINDOW_MS = 15 * 60_000
NO_ROW_KEY = -1

SAMPLE_SECONDS = 60.0


class RequestWindow:
    """Tells which requests are older than the deduplication window.

    Uses the monotonic clock, because the system clock may jump over the window while a client still waits for its
    reply. Message ids, which only grow, tell which requests came before a given moment.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._samples: deque[tuple[float, int]] = deque()
        self._expired_before = 0

    def expired_before(self, next_id: Callable[[], int]) -> int:
        """Return the id below which requests have expired. Call it at each sweep."""
        now, samples = self._monotonic(), self._samples
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append((now, next_id()))
        while samples and now - samples[0][0] >= REQUEST_WINDOW_MS / 1000:
            self._expired_before = samples.popleft()[1]
        return self._expired_before
