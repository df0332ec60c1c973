"""Group commit among threads: the twin of `penstock.group_commit.tasks` for programs without an event loop."""

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

from penstock.core import fork_safety
from penstock.core.commands import Command
from penstock.errors import PenstockError, StoreError
from penstock.group_commit.batch_order import arranged
from penstock.group_commit.interface import BATCH_COMMANDS_MAX, CommandSink

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
TURN_SECONDS = 0.002
"""For how long a thread in a rush keeps the turn while others wait."""
RUSH_SECONDS = 0.0001
"""Whoever comes again within this time is in a rush."""
RUSH_CALLS = 8
"""In a row: more than a worker makes between two messages."""
HOLDER = "holder"
INTERRUPTED = StoreError(
    "the commit was interrupted in another thread", hint="look whether it was kept before trying again"
)


class _Waiting:
    """One command that waits; its thread sleeps at the gate until there is an answer, or its turn to lead."""

    __slots__ = ("command", "gate", "gone", "next", "others", "outcome", "woken")

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.gate = threading.Lock()
        self.gate.acquire()
        self.woken = self.gone = False
        self.next: _Waiting | None = None
        """Whom to wake after this one."""
        self.others: list[_Waiting] = []
        """For whom this one commits as well."""
        self.outcome: Any = INTERRUPTED


class _ThreadLane:
    """Commands that share batches, one batch at a time: that of whoever has the turn."""

    __slots__ = ("handed_at", "mutex", "turn", "waiting")

    def __init__(self) -> None:
        self.handed_at = 0.0
        self.turn: dict[str, object] = {}
        """Who is its HOLDER. `setdefault` takes it and says by whom in one step, so no interrupt can come between."""
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

    Ctrl-C may come after any call and at the start of any function, and then whoever leaves mends: so each step that
    others depend on is either free of calls, or can be made twice.
    """

    def __init__(self, store: CommandSink, undo: Undo | None = None) -> None:
        self._store = store
        self._quick = store.commit_is_instant
        self._rushes: dict[int, _Rush] = {}
        self.after_fork_in_child()
        fork_safety.register(self)

    def submit(self, command: Command[T]) -> T:
        lane = self._only or self._lanes[self._store.lane(command)]
        rush = self._come() if self._quick else None
        claim = object()
        try:
            if lane.turn.setdefault(HOLDER, claim) is claim:
                outcome: Any = self._go_alone(lane, claim, command, rush)
            else:
                outcome = self._wait(lane, claim, _Waiting(command), rush)
        except BaseException:
            self._let_go(lane, claim)
            raise
        if rush is not None:
            rush.left_at = perf_counter()
        if isinstance(outcome, BaseException):
            # An error raised in several places would gather all their tracebacks.
            raise copy(outcome) if outcome is INTERRUPTED else outcome
        return outcome  # type: ignore[no-any-return]

    def _come(self) -> _Rush:
        """Not by `threading.local`, which took a tenth of the time of a whole put."""
        me = get_ident()
        rush = self._rushes.get(me)
        if rush is None:
            rush = self._rushes[me] = _Rush()
        rush.calls = rush.calls + 1 if perf_counter() - rush.left_at < RUSH_SECONDS else 0
        return rush

    def _go_alone(self, lane: _ThreadLane, claim: object, command: Command[Any], rush: _Rush | None) -> Any:
        outcome = self._store.apply((command,))[0]
        # Likely to be here again sooner than another could be woken.
        if (
            rush is not None
            and lane.waiting
            and rush.calls >= RUSH_CALLS
            and perf_counter() - lane.handed_at < TURN_SECONDS
        ):
            del lane.turn[HOLDER]
        else:
            self._hand_over(lane, claim)
        return outcome

    def _wait(self, lane: _ThreadLane, claim: object, mine: _Waiting, rush: _Rush | None) -> Any:
        """The turn is `mine` when it was handed to this one, and the claim's while this one hands it on."""
        try:
            with lane.mutex:
                lane.waiting.append(mine)
                patience = -1 if rush is None else TURN_SECONDS * (1 + len(lane.waiting))
            # Whoever had the turn may have left before it could see that somebody waits.
            self._let_go(lane, claim)
            while not mine.gate.acquire(timeout=patience):
                patience = TURN_SECONDS
                self._let_go(lane, claim)
            if lane.turn.get(HOLDER) is not mine:
                self._wake_next(lane, mine)
                return mine.outcome
            if rush is not None and rush.calls >= RUSH_CALLS:
                return self._go_alone(lane, mine, mine.command, rush)
            self._commit(lane, mine)
            self._hand_over(lane, mine)
            return mine.outcome
        except BaseException:
            self._leave(lane, mine)
            raise

    def _leave(self, lane: _ThreadLane, mine: _Waiting) -> None:
        """Interrupted: whoever has gone asks for nothing any more, and keeps nobody waiting."""
        with lane.mutex:
            with suppress(ValueError):
                lane.waiting.remove(mine)
            mine.gone = True
        if mine.woken:
            self._wake_others(lane, mine)
        self._let_go(lane, mine)

    def _commit(self, lane: _ThreadLane, mine: _Waiting) -> None:
        with lane.mutex:
            everyone = list(lane.waiting)
            rest = deque(everyone[BATCH_COMMANDS_MAX - 1 :])
            mine.others, lane.waiting = everyone[: BATCH_COMMANDS_MAX - 1], rest
        batch = arranged([mine, *mine.others], attrgetter("command"))
        try:
            outcomes = self._store.apply([waiting.command for waiting in batch])
        except PenstockError as error:
            outcomes = [copy(error) for _ in batch]
        except Exception as error:
            outcomes = [error] * len(batch)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome
        self._wake_others(lane, mine)

    def _wake_others(self, lane: _ThreadLane, mine: _Waiting) -> None:
        for one, two in pairwise([mine, *mine.others]):
            one.next = two
        self._wake_next(lane, mine)

    def _wake_next(self, lane: _ThreadLane, mine: _Waiting) -> None:
        following = mine.next
        if following is None:
            return
        with lane.mutex:
            while following is not None and following.gone:
                following = following.next
            if following is not None and not following.woken:
                following.woken = True
                following.gate.release()

    def _let_go(self, lane: _ThreadLane, claim: object) -> None:
        """Hand the turn over, if it is held by this one or by nobody."""
        if lane.turn.setdefault(HOLDER, claim) is claim:
            self._hand_over(lane, claim)

    def _hand_over(self, lane: _ThreadLane, claim: object) -> None:
        """To the one that has waited longest; else the turn is free."""
        while True:
            if lane.waiting:
                with lane.mutex:
                    if lane.waiting:
                        lane.handed_at = perf_counter()
                        # No call before the last: it would let an interrupt in.
                        next_one = lane.turn[HOLDER] = lane.waiting[0]
                        del lane.waiting[0]
                        next_one.woken = True
                        next_one.gate.release()
                        return
            del lane.turn[HOLDER]
            # One that came just now found the turn taken, and nobody has seen it wait.
            if not lane.waiting or lane.turn.setdefault(HOLDER, claim) is not claim:
                return

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._lanes = [_ThreadLane() for _ in range(self._store.lanes)]
        self._only = self._lanes[0] if len(self._lanes) == 1 else None

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        done(self.submit(command))

    def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Read from the store."""
        return look()

    def close(self) -> None:
        pass
