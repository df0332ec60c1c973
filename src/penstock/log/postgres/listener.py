"""Notifies listeners of streams: of local appends at once, of others' after polling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from penstock.errors import PenstockError
from penstock.postgres.pipeline import Rows, texts

Listener = Callable[[], None]


class Asks(Protocol):
    def ask(self, name: str, *params: object) -> Rows: ...


class _Listened:
    """A stream with listeners, and its end at the last poll."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.listeners: tuple[Listener, ...] = ()


class Listeners:
    def __init__(self, database: Asks) -> None:
        self._database = database
        self.start_over()

    def start_over(self) -> None:
        """Drop the listeners in a forked child; they belong to the parent."""
        self._mutex = threading.Lock()
        self._listened: dict[str, _Listened] = {}

    def add(self, name: str, listener: Listener) -> Callable[[], None]:
        with self._mutex:
            listened = self._listened.setdefault(name, _Listened())
            listened.listeners = (*listened.listeners, listener)

        def stop() -> None:
            with self._mutex:
                left = [each for each in listened.listeners if each != listener]
                listened.listeners = tuple(left)
                if not left and self._listened.get(name) is listened:
                    del self._listened[name]

        return stop

    def notify(self, name: str) -> None:
        listened = self._listened.get(name)
        if listened is not None:
            for listener in listened.listeners:
                listener()

    def check_for_appends(self) -> None:
        """Check for appends of other servers and notify the listeners of streams that have grown."""
        with self._mutex:
            known = dict(self._listened)
        if not known:
            return
        with suppress(PenstockError):
            ends: dict[str, int] = dict(self._database.ask("stream.ends", texts(list(known))))
            for name, listened in known.items():
                before, listened.next = listened.next, ends.get(name, -1)
                if before != listened.next:
                    self.notify(name)
