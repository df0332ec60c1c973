"""Asked to stop: what is at hand is finished first."""

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

LOOK_SECONDS = 0.1


class StopFlag:
    """Told by a signal, and looked at again and again: one that comes just before a sleep does not end it, and a lock
    that its handler asks for may be held by the very thread that it interrupts."""

    def __init__(self) -> None:
        self.told = False

    def tell(self) -> None:
        self.told = True

    def wait(self, seconds: float = math.inf) -> bool:
        """Whether it was told by then."""
        end = time.monotonic() + seconds
        while not self.told and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self.told


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Within it, the first signal only tells; whoever sends a second does not want to wait."""
    stop = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.told:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        stop.tell()

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in _signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Within it, what asks to end does what Ctrl-C does, also where Ctrl-C is ignored: it leaves time to tidy up."""

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
    """Within it, the first interrupt waits for the end; whoever sends a second does not want to."""
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
    """Be told to end once nobody holds the other end of our standard input: also by a parent that was killed."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _signals() -> list[signal.Signals]:
    """Also a terminal that is closed, unless `nohup` asked to outlive it."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found
