"""SIGINT and SIGTERM handling for workers. Several workers may share the main thread's event loop."""

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
def on_signals(notify: Callable[[bool], None]) -> Iterator[None]:
    """Call `notify(False)` on the first signal and `notify(True)` on the second, which restores the previous handlers.

    Does nothing outside the main thread, which alone can handle signals. `notify` may run between any two bytecodes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _watchers:
        for number in (signal.SIGTERM, signal.SIGINT):
            _before[number] = signal.signal(number, _first)
    _watchers.append(notify)
    try:
        yield
    finally:
        _watchers.remove(notify)
        if not _watchers:
            _restore()


def _first(number: int, frame: FrameType | None) -> None:
    for each in _before:
        signal.signal(each, _second)
    _notify_all(False)


def _second(number: int, frame: FrameType | None) -> None:
    _restore()
    _notify_all(True)


def _notify_all(is_second: bool) -> None:
    for notify in list(_watchers):
        notify(is_second)


def _restore() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler or signal.SIG_DFL)  # None means that the handler was not installed from Python.
    _before.clear()
