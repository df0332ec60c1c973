"""What must not cross a fork: locks that another thread holds, and open SQLite files.

SQLite keeps a table of the locks its process has on each file. A child inherits the table but not the locks, and would
write with none: so files are closed before a fork, and opened again by whoever uses them next, in parent and child.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Come to rest, and stay so until one of the other two is called."""

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Only the forking thread lives on here: locks are made anew."""


_lock = threading.Lock()
_known: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting: list[Forkable] = []


def register(each: Forkable) -> None:
    with _lock:
        _known.add(each)


def _before() -> None:
    _lock.acquire()
    _resting.extend(_known)
    for each in _resting:
        each.before_fork()


def _after_in_parent() -> None:
    for each in _resting:
        each.after_fork_in_parent()
    _resting.clear()
    _lock.release()


def _after_in_child() -> None:
    global _lock
    for each in _resting:
        each.after_fork_in_child()
    _resting.clear()
    _lock = threading.Lock()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
