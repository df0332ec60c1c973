"""The read operations of a store, each on one snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.model import (
    Ages,
    ApiKey,
    DeadError,
    Latencies,
    QueueInfo,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
)
from penstock.store.queries import StoreQueries

T = TypeVar("T")


class StoreReads(ABC):
    """The read-only half of a store."""

    @abstractmethod
    def _read(self, query: Callable[[StoreQueries[Any]], T]) -> T:
        """Run queries on one snapshot."""

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[StoredMessage], str | None]:
        return self._read(lambda reader: reader.peek(queue, state, limit, after))

    def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        return self._read(lambda reader: reader.dead_errors(queue, contains, limit, after))

    def get(self, queue: str, message_id: int) -> StoredMessage | None:
        return self._read(lambda reader: reader.get(queue, message_id))

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        return self._read(lambda reader: reader.locate(names))

    def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        return self._read(lambda reader: reader.held(queue, uuids))

    def find_queue(self, queue: str) -> QueueInfo | None:
        found = self._read(lambda reader: reader.find(queue))
        return None if found is None else found.info()

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]:
        return self._read(lambda reader: reader.list_queues(prefix, after, limit))

    def forwarders(self, target: str | None = None) -> list[str]:
        return self._read(lambda reader: reader.forwarders(target))

    def stats(self, queue: str) -> QueueStats:
        return self._read(lambda reader: reader.stats(queue))

    def ages(self, queues: Sequence[str]) -> dict[str, Ages]:
        return self._read(lambda reader: reader.ages(queues))

    def roll_ups(self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[RollUp]:
        return self._read(lambda reader: reader.roll_ups(window, prefix, after, limit))

    def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        return self._read(lambda reader: reader.latencies(window, prefix, after, limit))

    def find_key(self, key_id: str) -> ApiKey | None:
        return self._read(lambda reader: reader.find_key(key_id))

    def list_keys(self, queue: str | None = None, *, stream: str | None = None) -> list[ApiKey]:
        return self._read(lambda reader: reader.list_keys(queue, stream))

    def find_secret(self, queue: str) -> str | None:
        return self._read(lambda reader: reader.find_secret(queue))
