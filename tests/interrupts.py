"""Sends Ctrl-C at every moment of a call, one after the other."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted(call: Callable[[], Any], moment: int) -> bool:
    """Call it in this thread with a KeyboardInterrupt at the given moment; False when it ended before.

    A moment is where CPython looks for signals: as a function begins, and once a call into C has returned.
    """
    left = moment

    def look(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    gc.disable()  # An interrupt in a finalizer is only printed.
    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    assert left >= 0, "the interrupt was swallowed"
    return False


def each_moment(interrupt_at: Callable[[int], bool]) -> Iterator[int]:
    """All moments, until one at which there is nothing left to interrupt."""
    return itertools.takewhile(interrupt_at, itertools.count())
