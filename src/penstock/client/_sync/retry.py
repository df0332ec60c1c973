# Made by tools/unasync.py from the asynchronous twin: change that.
"""The retry policy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from penstock.client._concurrency_threads import sleep
from penstock.errors import TryLater

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 5.0


class Retry:
    """Exponential backoff with full jitter, not shorter than the server's Retry-After, until the time is used up."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._attempt = 0

    def wait(
        self,
        error: Exception,
        notify: Callable[[Exception, float], None] | None = None,
        *,
        after_ms: int | None = None,
    ) -> None:
        """Wait for the next attempt, or raise the error if the time is used up. `notify` gets the seconds left."""
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2**self._attempt)
        seconds = random.uniform(longest / 2, longest)
        if isinstance(error, TryLater):
            after_ms = error.retry_after_ms
        if after_ms is not None:
            seconds += after_ms / 1000
        left = self._deadline - time.monotonic()
        if seconds > left:
            raise error
        if notify is not None:
            notify(error, left)
        self._attempt = min(self._attempt + 1, 20)
        sleep(seconds)
