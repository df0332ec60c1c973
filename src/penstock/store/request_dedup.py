"""Requests that were made before: a client that repeats one gets the first one's answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

REQUEST_KEY = "\x1f"
"""No key of a user's begins so: a control character is none of theirs."""
REQUEST_WINDOW_MS = 15 * 60_000
NO_PLACE = -1

LOOK_SECONDS = 60.0


class RequestWindow:
    """Which requests came more than a window ago, by a clock that nobody can set: the wall's may leap over a window
    while a client still waits for its answer. Message ids, which only grow, tell what came before which moment."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._steady = monotonic
        self._moments: deque[tuple[float, int]] = deque()
        self._below = 0

    def below(self, next_id: Callable[[], int]) -> int:
        """Requests whose first id is below this may be forgotten. To be asked at each sweep."""
        now, moments = self._steady(), self._moments
        if not moments or now - moments[-1][0] >= LOOK_SECONDS:
            moments.append((now, next_id()))
        while moments and now - moments[0][0] >= REQUEST_WINDOW_MS / 1000:
            self._below = moments.popleft()[1]
        return self._below
