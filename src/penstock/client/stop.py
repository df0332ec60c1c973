"""A wish to stop that those who wait hear at once. The same for tasks and threads."""

from __future__ import annotations

from collections.abc import Callable


class StopSignal:
    def __init__(self) -> None:
        self.is_set = False
        self._watchers: dict[int, Callable[[], None]] = {}

    def set(self) -> None:
        self.is_set = True
        for tell in list(self._watchers.values()):
            tell()

    def watch(self, tell: Callable[[], None]) -> int:
        """Call `tell` when the wish comes, which may be now; answers what `unwatch` takes."""
        self._watchers[id(tell)] = tell
        if self.is_set:
            tell()
        return id(tell)

    def unwatch(self, watch: int) -> None:
        self._watchers.pop(watch, None)
