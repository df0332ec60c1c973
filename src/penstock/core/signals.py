"""Handles signals that ask a process to stop: it finishes the current work first."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

POLL_SECONDS = 0.1


class StopFlag:
    """A flag that a signal handler may set.

    It has no lock, because the thread that the handler interrupts may hold it, and so it is polled: a signal just
    before a sleep would not end the sleep.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until the flag is set; return False on timeout."""
        end = time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        return self._is_set


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Set a flag at the first signal; a second one does what it did before."""
    stop = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, before[number])
            signal.raise_signal(number)
        stop.set()

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in _signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that `finally` blocks run, even where Ctrl-C is ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Delay the first Ctrl-C until the block ends; a second one interrupts at once."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    held: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


def end_with_parent() -> None:
    """End this process when its standard input is closed, as it is when the parent process ends or is killed."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _signals() -> list[signal.Signals]:
    """Return the signals that ask to stop; SIGHUP only if `nohup` does not ignore it."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found
