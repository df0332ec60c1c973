"""Interface of a store. The conformance suite tests every store against it."""

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
    """Keeps queues and messages. Synchronous and thread-safe.

    All state is in the database, so any number of processes may use one at the same time.
    """

    @property
    def durability_warnings(self) -> Sequence[str]:
        """Reasons why a durable commit may not survive a crash; empty if there are none."""

    @property
    def clock(self) -> Clock:
        """Clock of the store, read without a query."""

    @property
    def store_id(self) -> int:
        """Random id of the database, part of the UUID of every message."""

    def push_on(self, connection: Any, command: Push) -> list[PushReceipt]:
        """Push in the transaction of the caller's connection, of a synchronous driver."""

    def version(self, topic: str | None = None) -> int:
        """Return a number that changes when another store may have changed the database. Never blocks.

        With a topic (a queue, or a task or namespace ending in a slash), only for changes that may concern it, if the
        store can tell.
        """

    def listen(self, listener: Callable[[], None]) -> Callable[[], None] | None:
        """Call the listener, on another thread, when `version` changes; return a function that removes it.

        Returns None if the store gets no notifications, so that `version` has to be polled.
        """

    def write_obstacle(self) -> str | None:
        """Return what blocks writes at this moment, or None, without waiting for it to end."""

    def commits(self) -> int:
        """Return a number that changes with any commit made while `write_obstacle` finds the store locked."""

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[StoredMessage], str | None]:
        """Return messages in lease order (dead and archived: newest first), and the cursor of the next page."""

    def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        """Return errors of dead letters without their messages, newest first, and the cursor of the next page."""

    def get(self, queue: str, message_id: int) -> StoredMessage | None: ...

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return the queue and id of the messages with these UUIDs or global keys.

        None for a message that was deleted; a message found by its key may have been deleted too.
        """

    def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        """Return those of these UUIDs whose messages are in this queue and not finished."""

    def find_queue(self, queue: str) -> QueueInfo | None: ...

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]: ...

    def forwarders(self, target: str | None = None) -> list[str]:
        """Return queues that forward dead letters to the target; without one, all that forward and hold any."""

    def stats(self, queue: str) -> QueueStats: ...

    def ages(self, queues: Sequence[str]) -> dict[str, Ages]:
        """Return the ages of ready messages of these queues, as far as they exist. Costs the same at any depth."""

    def roll_ups(self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[RollUp]:
        """Return the queues of `list_queues`, each with its history as far as it is retained."""

    def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        """Return the queues of `list_queues`, each with its latencies."""

    def find_key(self, key_id: str) -> ApiKey | None: ...

    def list_keys(self, queue: str | None = None, *, stream: str | None = None) -> list[ApiKey]:
        """Return the API keys of a queue or of a stream."""

    def find_secret(self, queue: str) -> str | None: ...

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        """Return servers and consumers, sorted by kind and name, each with the messages it holds."""

    def export(self, queue: str) -> Generator[StoredMessage, None, None]:
        """Yield all messages of a queue from one snapshot."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """Write a consistent copy while the store stays in use."""

    def compact(self) -> None:
        """Give free space back to the file system."""

    def shorten_log(self) -> None:
        """Truncate the write-ahead log, as far as readers allow."""

    def close(self) -> None: ...


class PushStatement(NamedTuple):
    sql: str
    """Statement with parameters $1, $2 and so on."""
    params: tuple[Any, ...]


@runtime_checkable
class PushesByStatement(Store, Protocol):
    """A store that pushes on the caller's connection with one statement, which any driver can execute."""

    def push_statement(self, command: Push) -> PushStatement: ...

    def pushed(self, command: Push, answer: str) -> list[PushReceipt]:
        """Return the receipts from the statement's result; raise an error if the push was rejected without effect."""

    def driver_error(self, error: Exception) -> Exception:
        """Return the error to raise for an error of the driver."""
