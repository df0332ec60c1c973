"""A stop signal that wakes waiters at once, for tasks and threads."""

from __future__ import annotations

from collections.abc import Callable


class StopSignal:
    def __init__(self) -> None:
        self.is_set = False
        self._watchers: dict[int, Callable[[], None]] = {}

    def set(self) -> None:
        self.is_set = True
        for notify in list(self._watchers.values()):
            notify()

    def watch(self, notify: Callable[[], None]) -> int:
        """Call `notify` when the signal is set, which may be now; return a handle for `unwatch`."""
        self._watchers[id(notify)] = notify
        if self.is_set:
            notify()
        return id(notify)

    def unwatch(self, watch: int) -> None:
        self._watchers.pop(watch, None)
