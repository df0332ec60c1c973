"""Group commit among threads: the twin of `penstock.committer` for programs without an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from itertools import pairwise
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import Any, TypeVar

from penstock import forks
from penstock.arrangement import arranged
from penstock.commands import Command
from penstock.errors import PenstockError, StoreError
from penstock.store.protocol import BATCH_COMMANDS_MAX, Applies

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
TURN_SECONDS = 0.002
"""For how long a thread in a rush keeps the turn while others wait."""
RUSH_SECONDS = 0.0001
"""Whoever comes again within this time is in a rush."""
RUSH_CALLS = 8
"""In a row: more than a worker makes between two messages."""
INTERRUPTED = StoreError(
    "the commit was interrupted in another thread", hint="look whether it was kept before trying again"
)


class _Waiting:
    """One command that waits; its thread sleeps at the gate until there is an answer, or its turn to lead."""

    __slots__ = ("command", "gate", "gone", "leads", "next", "outcome", "woken")

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = self.woken = self.gone = False
        self.next: _Waiting | None = None
        """Whom to wake after this one."""
        self.outcome: Any = None

    def wake(self) -> None:
        self.woken = True
        self.gate.release()


class _Lane:
    """Commands that share batches, one batch at a time: that of whoever has the turn."""

    __slots__ = ("handed_at", "mutex", "turn", "waiting")

    def __init__(self) -> None:
        self.handed_at = 0.0
        self.turn = threading.Lock()
        self.mutex = threading.Lock()
        self.waiting: deque[_Waiting] = deque()


class _Rush:
    """How often a thread has come again at once."""

    __slots__ = ("calls", "left_at")

    def __init__(self) -> None:
        self.calls, self.left_at = 0, 0.0


class ThreadCommitter:
    """The first thread to come commits. Whoever comes meanwhile waits, and one of them then commits for all of them.

    So in each lane of the store: a batch of one does not wait for that of another. Those of a batch wake one another in
    turn: woken all at once they would fight for the interpreter, in which only one can run.

    Where a commit waits for nothing, it takes less time than to wake another thread. There, one that calls again and
    again keeps the turn for a moment, and those who wait look by themselves whether it has gone.
    """

    def __init__(self, store: Applies, undo: Undo | None = None) -> None:
        self._store = store
        self._quick = store.quick
        self._rushes: dict[int, _Rush] = {}
        self.after_fork_in_child()
        forks.register(self)

    def submit(self, command: Command[T]) -> T:
        lane = self._only or self._lanes[self._store.lane(command)]
        rush = self._come() if self._quick else None
        if lane.turn.acquire(blocking=False):
            outcome: Any = self._go_alone(lane, command, rush)
        else:
            outcome = self._wait(lane, _Waiting(command), rush)
        if rush is not None:
            rush.left_at = perf_counter()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def _come(self) -> _Rush:
        """Not by `threading.local`, which took a tenth of the time of a whole put."""
        me = get_ident()
        rush = self._rushes.get(me)
        if rush is None:
            rush = self._rushes[me] = _Rush()
        rush.calls = rush.calls + 1 if perf_counter() - rush.left_at < RUSH_SECONDS else 0
        return rush

    def _go_alone(self, lane: _Lane, command: Command[Any], rush: _Rush | None) -> Any:
        try:
            return self._store.apply((command,))[0]
        finally:
            # Likely to be here again sooner than another could be woken.
            if (
                rush is not None
                and lane.waiting
                and rush.calls >= RUSH_CALLS
                and perf_counter() - lane.handed_at < TURN_SECONDS
            ):
                lane.turn.release()
            else:
                self._hand_over(lane)

    def _wait(self, lane: _Lane, mine: _Waiting, rush: _Rush | None) -> Any:
        try:
            with lane.mutex:
                lane.waiting.append(mine)
                patience = -1 if rush is None else TURN_SECONDS * (1 + len(lane.waiting))
            if lane.turn.acquire(blocking=False):
                # Whoever had the turn may have left before it could see that somebody waits.
                self._hand_over(lane)
            while not mine.gate.acquire(timeout=patience):
                patience = TURN_SECONDS
                if lane.turn.acquire(blocking=False):
                    self._hand_over(lane)
            self._wake_next(lane, mine)
        except BaseException:
            self._leave(lane, mine)
            raise
        if not mine.leads:
            return mine.outcome
        if rush is not None and rush.calls >= RUSH_CALLS:
            return self._go_alone(lane, mine.command, rush)
        try:
            self._commit(lane, mine)
        finally:
            self._hand_over(lane)
        return mine.outcome

    def _leave(self, lane: _Lane, mine: _Waiting) -> None:
        """Interrupted while waiting: whoever has gone asks for nothing any more."""
        with lane.mutex:
            with suppress(ValueError):
                lane.waiting.remove(mine)
            mine.gone = True
        if mine.leads:
            self._hand_over(lane)
        elif mine.woken:
            self._wake_next(lane, mine)

    def _commit(self, lane: _Lane, mine: _Waiting) -> None:
        with lane.mutex:
            others = [lane.waiting.popleft() for _ in range(min(len(lane.waiting), BATCH_COMMANDS_MAX - 1))]
        batch = arranged([mine, *others], attrgetter("command"))
        outcomes: list[Any] = []
        try:
            outcomes = self._store.apply([waiting.command for waiting in batch])
        except PenstockError as error:
            outcomes = [copy(error) for _ in batch]
        except Exception as error:
            outcomes = [error] * len(batch)
        finally:
            # Ctrl-C in the thread that commits, which may come before or after the commit, is for that thread alone.
            for waiting, outcome in zip(batch, outcomes or [INTERRUPTED] * len(batch), strict=True):
                waiting.outcome = outcome
            for one, two in pairwise([mine, *others]):
                one.next = two
            self._wake_next(lane, mine)

    def _wake_next(self, lane: _Lane, mine: _Waiting) -> None:
        following = mine.next
        if following is None:
            return
        mine.next = None
        with lane.mutex:
            while following is not None and following.gone:
                following = following.next
            if following is not None:
                following.wake()

    def _hand_over(self, lane: _Lane) -> None:
        """To the one that has waited longest; else the turn is free."""
        while True:
            if lane.waiting:
                with lane.mutex:
                    if lane.waiting:
                        lane.handed_at = perf_counter()
                        next_one = lane.waiting.popleft()
                        next_one.leads = True
                        next_one.wake()
                        return
            lane.turn.release()
            # One that came just now found the turn taken, and nobody has seen it wait.
            if not lane.waiting or not lane.turn.acquire(blocking=False):
                return

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._lanes = [_Lane() for _ in range(self._store.lanes)]
        self._only = self._lanes[0] if len(self._lanes) == 1 else None

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        done(self.submit(command))

    def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Read from the store."""
        return look()

    def close(self) -> None:
        pass
