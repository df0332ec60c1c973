"""Interface between a committer and the store or log that executes its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.core.commands import Command
from penstock.errors import PenstockError

Outcome = Any
# Most commands that share one transaction.
BATCH_COMMANDS_MAX = 512


class PreparedBatch(Protocol):
    """A batch that only needs its commit. Call `commit` on any thread, then `release` on the one that prepared it."""

    outcomes: list[Any]
    waits_for_disk: bool

    def commit(self) -> None: ...

    def release(self) -> None: ...


class CommandSink(Protocol):
    """Executes batches of commands: a store or a log."""

    @property
    def lanes(self) -> int:
        """Number of batches that may run at the same time."""

    def lane(self, command: Command[Any]) -> int:
        """Return the lane of a command, from 0 to `lanes` - 1."""

    @property
    def commit_is_instant(self) -> bool:
        """True if a commit does not wait for the disk, so batching gains little."""

    def apply(self, commands: Sequence[Command[Any]]) -> list[Outcome | PenstockError]:
        """Execute a batch, each command completely or not at all, and return when it is durable.

        An error of one command is its outcome. An error of the whole batch is raised, and nothing is stored.
        """

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedBatch | None:
        """Execute a batch like `apply` but leave the commit to the caller; None if that would block."""

    def apply_now(self, command: Command[Any]) -> Outcome | None:
        """Execute one command and return its outcome when it is durable; None, without effect, if it would wait for
        more than the disk or needs a transaction."""


class SingleLane:
    """Defaults for a sink that runs one batch at a time."""

    lanes = 1
    commit_is_instant = False

    def lane(self, command: Command[Any]) -> int:
        return 0

    def apply_now(self, command: Command[Any]) -> Outcome | None:
        return None
