"""Waits on a thread until a log has grown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.core.limits import POLL_SECONDS, WAIT_SECONDS_MAX

Listener = Callable[[], None]
Stop = Callable[[], None]


def wait_for_offset(
    offset: int,
    seconds: float,
    next_offset: Callable[[], int],
    listen: Callable[[Listener], Stop | None],
    is_closed: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until there is a record at this offset; return False on timeout or when the log is closed.

    `listen` returns None if appends are not reported; then they are found by polling.
    """
    deadline = time.monotonic() + min(seconds, WAIT_SECONDS_MAX)
    grown = threading.Event()
    stop = listen(grown.set)
    try:
        while not is_closed():
            grown.clear()
            if next_offset() > offset:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                break
            grown.wait(left if stop is not None else min(left, POLL_SECONDS))
        return False
    finally:
        if stop is not None:
            stop()
