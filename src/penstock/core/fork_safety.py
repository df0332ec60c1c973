"""Keeps locks held by other threads and open SQLite files from crossing a fork.

SQLite keeps a table of the locks its process holds on each file. A child inherits the table but not the locks, and
would write without any. So files are closed before a fork and reopened at the next use, in parent and child.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Stop all activity until one of the other two methods is called."""

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Create new locks: only the forking thread survives in the child."""


_lock = threading.Lock()
_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_paused: list[Forkable] = []


def register(target: Forkable) -> None:
    with _lock:
        _registered.add(target)


def _before() -> None:
    _lock.acquire()
    _paused.extend(_registered)
    for each in _paused:
        each.before_fork()


def _after_in_parent() -> None:
    for each in _paused:
        each.after_fork_in_parent()
    _paused.clear()
    _lock.release()


def _after_in_child() -> None:
    global _lock
    for each in _paused:
        each.after_fork_in_child()
    _paused.clear()
    _lock = threading.Lock()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
