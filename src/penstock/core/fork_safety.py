"""Keeps locks held by other threads and open SQLite files from crossing a fork.

SQLite keeps a table of the locks its process holds on each file. A child inherits the table but not the locks, and
would write without any. So files are closed before a fork and reopened at the next use, in parent and child.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Resettable(Protocol):
    def after_fork_in_child(self) -> None:
        """Create new locks: only the forking thread survives in the child."""


class Forkable(Resettable, Protocol):
    def before_fork(self) -> None:
        """Stop all activity until one of the other two methods is called."""

    def after_fork_in_parent(self) -> None: ...


_lock = threading.Lock()
_paused_by_fork: weakref.WeakSet[Forkable] = weakref.WeakSet()
_reset_by_fork: weakref.WeakSet[Resettable] = weakref.WeakSet()
# Those of the fork in progress.
_paused: list[Forkable] = []
_reset: list[Resettable] = []


def register(target: Forkable) -> None:
    """Pause the target during every fork, and reset it in the child."""
    with _lock:
        _paused_by_fork.add(target)


def register_reset(target: Resettable) -> None:
    """Reset the target in the child of every fork."""
    with _lock:
        _reset_by_fork.add(target)


def _before() -> None:
    _lock.acquire()
    _paused.extend(_paused_by_fork)
    _reset.extend(_reset_by_fork)
    for each in _paused:
        each.before_fork()


def _after_in_parent() -> None:
    for each in _paused:
        each.after_fork_in_parent()
    _paused.clear()
    _reset.clear()
    _lock.release()


def _after_in_child() -> None:
    global _lock
    for each in (*_paused, *_reset):
        each.after_fork_in_child()
    _paused.clear()
    _reset.clear()
    _lock = threading.Lock()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
