"""Group commit for threads: the counterpart of `penstock.group_commit.tasks` for programs without an event loop."""

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
from penstock.group_commit.batch_order import group_compatible
from penstock.group_commit.interface import BATCH_COMMANDS_MAX, CommandSink

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
# How long a thread in a burst keeps the turn while others wait.
TURN_SECONDS = 0.002
# A thread that calls again within this time continues its burst.
BURST_SECONDS = 0.0001
# Calls in a row that count as a burst: more than a worker makes between two messages.
BURST_CALLS = 8
HOLDER = "holder"
INTERRUPTED = StoreError(
    "the commit was interrupted in another thread", hint="it may have been committed: check before trying again"
)


class _Waiting:
    """A pending command. Its thread sleeps on the gate until it gets the outcome or the turn to commit."""

    __slots__ = ("command", "gate", "is_abandoned", "next", "others", "outcome", "woken")

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.gate = threading.Lock()
        self.gate.acquire()
        self.woken = self.is_abandoned = False
        # The waiter to wake after this one.
        self.next: _Waiting | None = None
        # Waiters whose commands this one commits too.
        self.others: list[_Waiting] = []
        self.outcome: Any = INTERRUPTED


class _ThreadLane:
    """Commands that share batches. Only the thread that has the turn commits, one batch at a time."""

    __slots__ = ("handed_at", "mutex", "turn", "waiting")

    def __init__(self) -> None:
        self.handed_at = 0.0
        # Maps HOLDER to the claim that has the turn. `setdefault` claims it and returns the holder in one step, so no
        # interrupt can come between.
        self.turn: dict[str, object] = {}
        self.mutex = threading.Lock()
        self.waiting: deque[_Waiting] = deque()


class _Burst:
    """Number of calls in a row that a thread made without a pause."""

    __slots__ = ("calls", "left_at")

    def __init__(self) -> None:
        self.calls, self.left_at = 0, 0.0


class ThreadCommitter:
    """Batches the commands of concurrent threads into one transaction.

    The first thread commits its own command. Threads that arrive meanwhile wait, and then one of them commits for all.
    Each lane of the store works this way on its own. The threads of a batch wake one another in turn: woken all at
    once, they would compete for the interpreter lock.

    A commit that does not wait for the disk takes less time than waking another thread. There, a thread that calls in a
    burst keeps the turn for a moment, and the waiting threads check for themselves whether the turn is free.

    Ctrl-C may interrupt after any call and at the start of any function, and the interrupted thread then cleans up. So
    each step that other threads depend on either makes no calls or can be repeated.
    """

    def __init__(self, store: CommandSink, undo: Undo | None = None) -> None:
        self._store = store
        self._quick = store.commit_is_instant
        self._bursts: dict[int, _Burst] = {}
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    def submit(self, command: Command[T]) -> T:
        lane = self._only or self._lanes[self._store.lane(command)]
        burst = self._count_call() if self._quick else None
        claim = object()
        try:
            if lane.turn.setdefault(HOLDER, claim) is claim:
                outcome: Any = self._commit_single(lane, claim, command, burst)
            else:
                outcome = self._wait(lane, claim, _Waiting(command), burst)
        except BaseException:
            self._release_turn(lane, claim)
            raise
        if burst is not None:
            burst.left_at = perf_counter()
        if isinstance(outcome, BaseException):
            # One exception raised in several threads would accumulate all their tracebacks.
            raise copy(outcome) if outcome is INTERRUPTED else outcome
        return outcome  # type: ignore[no-any-return]

    def _count_call(self) -> _Burst:
        """Return the calling thread's burst. `threading.local` would take a tenth of the time of a whole put."""
        me = get_ident()
        burst = self._bursts.get(me)
        if burst is None:
            burst = self._bursts[me] = _Burst()
        burst.calls = burst.calls + 1 if perf_counter() - burst.left_at < BURST_SECONDS else 0
        return burst

    def _commit_single(self, lane: _ThreadLane, claim: object, command: Command[Any], burst: _Burst | None) -> Any:
        outcome = self._store.apply((command,))[0]
        # This thread will likely call again before another could be woken.
        if (
            burst is not None
            and lane.waiting
            and burst.calls >= BURST_CALLS
            and perf_counter() - lane.handed_at < TURN_SECONDS
        ):
            del lane.turn[HOLDER]
        else:
            self._hand_over(lane, claim)
        return outcome

    def _wait(self, lane: _ThreadLane, claim: object, mine: _Waiting, burst: _Burst | None) -> Any:
        """Wait for the outcome. The turn is held by `mine` after a hand-over, and by `claim` while it is handed on."""
        try:
            with lane.mutex:
                lane.waiting.append(mine)
                patience = -1 if burst is None else TURN_SECONDS * (1 + len(lane.waiting))
            # The holder may have given up the turn before it could see this waiter.
            self._release_turn(lane, claim)
            while not mine.gate.acquire(timeout=patience):
                patience = TURN_SECONDS
                self._release_turn(lane, claim)
            if lane.turn.get(HOLDER) is not mine:
                self._wake_next(lane, mine)
                return mine.outcome
            if burst is not None and burst.calls >= BURST_CALLS:
                return self._commit_single(lane, mine, mine.command, burst)
            self._commit(lane, mine)
            self._hand_over(lane, mine)
            return mine.outcome
        except BaseException:
            self._leave(lane, mine)
            raise

    def _leave(self, lane: _ThreadLane, mine: _Waiting) -> None:
        """Withdraw an interrupted command, without keeping others waiting."""
        with lane.mutex:
            with suppress(ValueError):
                lane.waiting.remove(mine)
            mine.is_abandoned = True
        if mine.woken:
            self._wake_others(lane, mine)
        self._release_turn(lane, mine)

    def _commit(self, lane: _ThreadLane, mine: _Waiting) -> None:
        with lane.mutex:
            pending = list(lane.waiting)
            rest = deque(pending[BATCH_COMMANDS_MAX - 1 :])
            mine.others, lane.waiting = pending[: BATCH_COMMANDS_MAX - 1], rest
        batch = group_compatible([mine, *mine.others], attrgetter("command"))
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
            while following is not None and following.is_abandoned:
                following = following.next
            if following is not None and not following.woken:
                following.woken = True
                following.gate.release()

    def _release_turn(self, lane: _ThreadLane, claim: object) -> None:
        """Hand the turn over if it is free or held by this claim."""
        if lane.turn.setdefault(HOLDER, claim) is claim:
            self._hand_over(lane, claim)

    def _hand_over(self, lane: _ThreadLane, claim: object) -> None:
        """Give the turn to the thread that has waited longest, or free it."""
        while True:
            if lane.waiting:
                with lane.mutex:
                    if lane.waiting:
                        lane.handed_at = perf_counter()
                        # No calls until the release: an interrupt could arrive in them.
                        next_one = lane.turn[HOLDER] = lane.waiting[0]
                        del lane.waiting[0]
                        next_one.woken = True
                        next_one.gate.release()
                        return
            del lane.turn[HOLDER]
            # A thread that arrived just now found the turn taken, and no holder has seen it wait.
            if not lane.waiting or lane.turn.setdefault(HOLDER, claim) is not claim:
                return

    def after_fork_in_child(self) -> None:
        self._lanes = [_ThreadLane() for _ in range(self._store.lanes)]
        self._only = self._lanes[0] if len(self._lanes) == 1 else None

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        done(self.submit(command))

    def call(self, read: Callable[[], T], *, background: bool = False) -> T:
        """Read from the store."""
        return read()

    def close(self) -> None:
        pass
