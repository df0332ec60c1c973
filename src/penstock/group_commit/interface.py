"""What commands are committed to: a store or a log, one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.core.commands import Command
from penstock.errors import PenstockError

Outcome = Any
BATCH_COMMANDS_MAX = 512
"""How many commands share a transaction at most."""


class PreparedBatch(Protocol):
    """A batch that lacks only its commit. `commit` on any thread, then `release` on the one that prepared it."""

    outcomes: list[Any]
    waits_for_disk: bool

    def commit(self) -> None: ...

    def release(self) -> None: ...


class PendingReply(Protocol):
    """A batch that is with a database. Nothing here waits but `finish`; an event loop watches the socket."""

    socket: int
    patience_seconds: float | None
    """After so long without an answer, `abandon`."""

    @property
    def failed(self) -> bool:
        """Whether no answer will come."""

    def send(self) -> bool:
        """Send on; whether all of it is sent."""

    def receive(self) -> bool:
        """Take in what has come; whether that is all there will be."""

    def abandon(self) -> None:
        """The line has gone silent: `finish` finds out on another what became of the batch."""

    def let_go(self) -> None:
        """Of the connection: after all of the answer, or instead of waiting for it."""

    def outcomes(self) -> list[Any] | None:
        """After the answer; None when `finish` has more to do."""

    def finish(self) -> list[Any]:
        """On a thread: whatever it takes until the outcomes are known."""


class CommandSink(Protocol):
    """What a committer commits to: a store, or a log."""

    @property
    def lanes(self) -> int:
        """How many batches may be with it at once."""

    def lane(self, command: Command[Any]) -> int:
        """Which of them a command goes with: below `lanes`."""

    @property
    def commit_is_instant(self) -> bool:
        """Whether a commit waits for nothing, so that to share one gains little."""

    def apply(self, commands: Sequence[Command[Any]]) -> list[Outcome | PenstockError]:
        """Carry out a batch, each command whole or not at all; answered when it is on disk.

        An error of one command is its outcome. An error of the whole is raised, and nothing was kept.
        """

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedBatch | None:
        """As `apply`, but the commit is left to the caller; None when that cannot be done without waiting."""

    def ask(self, commands: Sequence[Command[Any]]) -> PendingReply | None:
        """As `apply`, but the wait for the answer is left to the caller; None when there is more to it than that."""


class SingleLane:
    """For what carries out one batch after another, and is no server that answers."""

    lanes = 1
    commit_is_instant = False

    def ask(self, commands: Sequence[Command[Any]]) -> PendingReply | None:
        return None

    def lane(self, command: Command[Any]) -> int:
        return 0
