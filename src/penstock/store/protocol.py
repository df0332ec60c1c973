"""What every store does. The conformance suite holds each of them to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.commands import Command, Push
from penstock.errors import PenstockError
from penstock.model import (
    Ages,
    ApiKey,
    Clock,
    DeadError,
    Latencies,
    Message,
    QueueInfo,
    QueueStats,
    Receipt,
    RollUp,
    State,
    Window,
    Worker,
)

Outcome = Any
BATCH_COMMANDS_MAX = 512
"""How many commands share a transaction at most."""
Progress = Callable[[int, int], None]
"""Called with done and total."""


class JournalRow(NamedTuple):
    """The events of one commit: this many records, back to back, the first at this offset."""

    first_offset: int
    records: int
    bytes: bytes


class Prepared(Protocol):
    """A batch that lacks only its commit. `commit` on any thread, then `release` on the one that prepared it."""

    outcomes: list[Any]
    waits_for_disk: bool

    def commit(self) -> None: ...

    def release(self) -> None: ...


class Asked(Protocol):
    """A batch that is with a database. Nothing here waits but `finish`; an event loop watches the socket."""

    socket: int
    patience_seconds: float | None
    """After so long without an answer, `give_up`."""

    @property
    def failed(self) -> bool:
        """Whether no answer will come."""

    def send(self) -> bool:
        """Send on; whether all of it is sent."""

    def take_in(self) -> bool:
        """Take in what has come; whether that is all there will be."""

    def give_up(self) -> None:
        """The line has gone silent: `finish` finds out on another what became of the batch."""

    def let_go(self) -> None:
        """Of the connection: after all of the answer, or instead of waiting for it."""

    def outcomes(self) -> list[Any] | None:
        """After the answer; None when `finish` has more to do."""

    def finish(self) -> list[Any]:
        """On a thread: whatever it takes until the outcomes are known."""


class Applies(Protocol):
    """What a committer commits to: a store, or a log."""

    @property
    def lanes(self) -> int:
        """How many batches may be with it at once."""

    def lane(self, command: Command[Any]) -> int:
        """Which of them a command goes with: below `lanes`."""

    @property
    def quick(self) -> bool:
        """Whether a commit waits for nothing, so that to share one gains little."""

    def apply(self, commands: Sequence[Command[Any]]) -> list[Outcome | PenstockError]:
        """Carry out a batch, each command whole or not at all; answered when it is on disk.

        An error of one command is its outcome. An error of the whole is raised, and nothing was kept.
        """

    def prepare(self, commands: Sequence[Command[Any]]) -> Prepared | None:
        """As `apply`, but the commit is left to the caller; None when that cannot be done without waiting."""

    def ask(self, commands: Sequence[Command[Any]]) -> Asked | None:
        """As `apply`, but the wait for the answer is left to the caller; None when there is more to it than that."""


class OneLane:
    """For what carries out one batch after another, and is no server that answers."""

    lanes = 1
    quick = False

    def ask(self, commands: Sequence[Command[Any]]) -> Asked | None:
        return None

    def lane(self, command: Command[Any]) -> int:
        return 0


class Store(Applies, Protocol):
    """Synchronous, safe for threads. All state is in the database: any number of processes may use one at once."""

    @property
    def durability_warnings(self) -> Sequence[str]:
        """Sentences about what may keep a durable commit from surviving a crash; empty if there is nothing."""

    @property
    def clock(self) -> Clock:
        """The time that the store goes by, without asking it."""

    @property
    def salt(self) -> int:
        """Drawn once for each database; part of every message's UUID."""

    def push_on(self, connection: Any, command: Push) -> list[Receipt]:
        """Push in the transaction of a connection of the caller's own, of a synchronous driver."""

    def version(self, interest: str | None = None) -> int:
        """Changes whenever another than this store may have changed the database, in what is of this interest (a queue,
        or a task or namespace with a slash at its end) if the store can tell. Never waits."""

    def listen(self, listener: Callable[[], None]) -> Callable[[], None] | None:
        """Call this, in another thread, whenever `version` has changed, until what is returned is called.

        None: the store does not hear of changes, and `version` has to be looked at.
        """

    def write_obstacle(self) -> str | None:
        """Return what keeps writes out at this moment, or None. Does not wait for it to go away."""

    def commits(self) -> int:
        """Return a number that changes when anyone commits while `write_obstacle` finds the store locked."""

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[Message], str | None]:
        """Messages in the order they would be leased (dead and archived: newest first), and a cursor for the next."""

    def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        """Errors of dead letters, newest first, without their messages, and a cursor for the next."""

    def get(self, queue: str, message_id: int) -> Message | None: ...

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        """The queue and id of the messages that have these UUIDs, or were pushed with these global keys.

        None for a message that is known to be gone; one that a key leads to may be gone, too.
        """

    def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        """Those whose messages are in this queue, and not done."""

    def find_queue(self, queue: str) -> QueueInfo | None: ...

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]: ...

    def forwarders(self, target: str | None = None) -> list[str]:
        """Queues that name this one for their dead letters; without a target, those that name any and hold some."""

    def stats(self, queue: str) -> QueueStats: ...

    def ages(self, queues: Sequence[str]) -> dict[str, Ages]:
        """Ages of what waits in these queues, leaving out queues that do not exist. Costs the same at any depth."""

    def roll_ups(self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[RollUp]:
        """Queues as `list_queues` lists them, each with its history; what is older than is kept did not happen."""

    def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        """Queues as `list_queues` lists them, each with how long its messages took."""

    def find_key(self, key_id: str) -> ApiKey | None: ...

    def list_stream_keys(self, stream: str) -> list[ApiKey]: ...

    def list_keys(self, queue: str) -> list[ApiKey]: ...

    def find_secret(self, queue: str) -> str | None: ...

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[Worker]:
        """Servers and consumers, in the order of kind and name, each with what it holds."""

    def export(self, queue: str) -> Generator[Message, None, None]:
        """All that is in a queue, as of one moment, streamed."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """A copy as of one moment, while others go on working."""

    def compact(self) -> None:
        """Give free space back to the file system."""

    def shorten_log(self) -> None:
        """Make what is written ahead of the database short again, as far as readers allow."""

    def close(self) -> None: ...


class PushStatement(NamedTuple):
    sql: str
    """With parameters as $1, $2 and so on."""
    params: tuple[Any, ...]


@runtime_checkable
class PushesByStatement(Store, Protocol):
    """A store whose pushes on a connection of the caller's own are one statement, which any driver can execute."""

    def push_statement(self, command: Push) -> PushStatement: ...

    def pushed(self, command: Push, answer: str) -> list[Receipt]:
        """What the statement answered; an error if the push was refused, and then it changed nothing."""

    def driver_error(self, error: Exception) -> Exception:
        """An error of the driver as the caller should see it."""


class Journalled(Store, Protocol):
    """A store whose journal is drained into a log."""

    @property
    def journal_waits(self) -> bool:
        """Whether `CatchUpJournal` may have something to tell."""

    def journal_bounds(self) -> tuple[int, int]:
        """The first offset that is not forgotten, and the next to be given."""

    def journal_from(self, offset: int, max_bytes: int) -> list[JournalRow]:
        """What was committed from this offset on and not yet forgotten: at least one row if there is any."""

    def sync(self) -> None:
        """Wait until all that is committed is on disk, also what did not wait when it was."""
