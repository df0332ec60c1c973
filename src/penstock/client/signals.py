"""SIGINT and SIGTERM for workers, of which several may share the main thread's event loop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_watchers: list[Callable[[bool], None]] = []
_before: dict[int, Any] = {}


@contextmanager
def on_signals(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call `tell(False)` on the first signal and `tell(True)` on the second, which restores the previous handlers.

    Only in the main thread: no other can handle signals. `tell` runs between any two steps of that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _watchers:
        for number in (signal.SIGTERM, signal.SIGINT):
            _before[number] = signal.signal(number, _first)
    _watchers.append(tell)
    try:
        yield
    finally:
        _watchers.remove(tell)
        if not _watchers:
            _restore()


def _first(number: int, frame: FrameType | None) -> None:
    for each in _before:
        signal.signal(each, _second)
    _tell_all(False)


def _second(number: int, frame: FrameType | None) -> None:
    _restore()
    _tell_all(True)


def _tell_all(is_second: bool) -> None:
    for tell in list(_watchers):
        tell(is_second)


def _restore() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler or signal.SIG_DFL)  # None: not installed from Python.
    _before.clear()
