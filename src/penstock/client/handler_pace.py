"""Decides how many messages to lease ahead of a handler, from the time it takes."""

from __future__ import annotations

# A message that is leased ahead should start within this time.
PLAN_SECONDS = 0.1
# If it has not started after this time, it goes back to the queue, so that a handler that becomes slow hoards nothing.
HOLD_SECONDS = 1.0
# Shares of the lease: a message starts early enough that its first renewal, after a third of the lease, is in time.
PLAN_SHARE = 1 / 10
HOLD_SHARE = 1 / 4
AHEAD_MAX = 100
AHEAD_BYTES_MAX = 4 << 20
# Weight of the newest value in the averages of handler time and payload size. Higher values count at once.
SMOOTHING = 0.1


class HandlerPace:
    """Averages of one handler that processes messages on several lanes. Not thread-safe."""

    def __init__(self, lease_ms: int, lanes: int = 1, ahead_max: int = AHEAD_MAX) -> None:
        lease_seconds = lease_ms / 1000
        self.hold_seconds = min(HOLD_SECONDS, lease_seconds * HOLD_SHARE)
        self._planned_seconds = min(PLAN_SECONDS, lease_seconds * PLAN_SHARE) * lanes
        self._ahead_max = ahead_max
        self._seconds: float | None = None
        self._bytes = 1.0

    def finished(self, payload_bytes: int, seconds: float) -> None:
        """Record how long the handler took for one message."""
        self._seconds = _smoothed(self._seconds or 0.0, seconds)
        self._bytes = _smoothed(self._bytes, payload_bytes)

    def overdue(self) -> None:
        """Record that messages did not start in time: none is leased ahead until the handler is fast again."""
        self._seconds = max(self._seconds or 0.0, 2 * self._planned_seconds)

    def ahead(self) -> int:
        """Return how many messages to lease ahead: none until the handler's time is known."""
        if self._seconds is None:
            return 0
        in_time = self._planned_seconds / max(self._seconds, 1e-6)
        return int(min(self._ahead_max, in_time, AHEAD_BYTES_MAX / self._bytes))


def _smoothed(average: float, value: float) -> float:
    return max(value, (1 - SMOOTHING) * average + SMOOTHING * value)
