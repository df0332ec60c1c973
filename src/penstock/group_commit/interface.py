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


class PendingReply(Protocol):
    """A batch sent to a database. Only `finish` blocks; for the rest an event loop watches the socket."""

    socket: int
    patience_seconds: float | None
    """How long to wait for a reply before calling `abandon`."""

    @property
    def failed(self) -> bool:
        """True if no reply will come."""

    def send(self) -> bool:
        """Send as much as fits, and return True when everything is sent."""

    def receive(self) -> bool:
        """Read what has arrived, and return True when the reply is complete."""

    def abandon(self) -> None:
        """Give up a silent connection; `finish` then finds out over another one whether the batch was committed."""

    def release(self) -> None:
        """Return the connection, after the complete reply or instead of waiting for it."""

    def outcomes(self) -> list[Any] | None:
        """Return the outcomes after the reply; None if `finish` is needed to get them."""

    def finish(self) -> list[Any]:
        """Block until the outcomes are known. Call on a thread."""


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

    def begin_async(self, commands: Sequence[Command[Any]]) -> PendingReply | None:
        """Send a batch and leave the wait for its reply to the caller; None if it takes more than one round trip."""


class SingleLane:
    """Defaults for a sink that runs one batch at a time and has no socket to wait on."""

    lanes = 1
    commit_is_instant = False

    def begin_async(self, commands: Sequence[Command[Any]]) -> PendingReply | None:
        return None

    def lane(self, command: Command[Any]) -> int:
        return 0
