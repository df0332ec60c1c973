"""What every store does. The conformance suite holds each of them to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.core.commands import Push
from penstock.core.model import (
    Ages,
    ApiKey,
    Clock,
    DeadError,
    Latencies,
    Progress,
    PushReceipt,
    QueueInfo,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
    WorkerInfo,
)
from penstock.group_commit.interface import CommandSink


class Store(CommandSink, Protocol):
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

    def push_on(self, connection: Any, command: Push) -> list[PushReceipt]:
        """Push in the transaction of a connection of the caller's own, of a synchronous driver."""

    def version(self, topic: str | None = None) -> int:
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
    ) -> tuple[list[StoredMessage], str | None]:
        """Messages in the order they would be leased (dead and archived: newest first), and a cursor for the next."""

    def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        """Errors of dead letters, newest first, without their messages, and a cursor for the next."""

    def get(self, queue: str, message_id: int) -> StoredMessage | None: ...

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

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        """Servers and consumers, in the order of kind and name, each with what it holds."""

    def export(self, queue: str) -> Generator[StoredMessage, None, None]:
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

    def pushed(self, command: Push, answer: str) -> list[PushReceipt]:
        """What the statement answered; an error if the push was refused, and then it changed nothing."""

    def driver_error(self, error: Exception) -> Exception:
        """An error of the driver as the caller should see it."""
