"""Interrupts a call with Ctrl-C at each possible moment in turn."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted(call: Callable[[], Any], moment: int) -> bool:
    """Run the call with a KeyboardInterrupt at the given moment; return False if it ended before that moment.

    CPython handles signals when a function begins and after a call into C returns, so these are the moments.
    """
    left = moment

    def on_profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    gc.disable()  # Python only prints an exception that a finalizer raises, so the interrupt would be lost.
    sys.setprofile(on_profile)
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
    """Yield all moments until the call ends without an interrupt."""
    return itertools.takewhile(interrupt_at, itertools.count())
