"""The backend interface of the queue commands, over HTTP or directly on a file.

Results are plain data with the same fields as the HTTP API's responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Raw, Struct

Data = dict[str, Any]
Verb = Literal["ack", "nack", "extend"]


class KeyOwner(NamedTuple):
    """The queue or the stream that an API key gives access to."""

    queue: str | None
    stream: str | None

    @property
    def name(self) -> str:
        return self.queue or self.stream or ""


class Outgoing(Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A message to push; also the format of a line with `--envelope`."""

    payload: Raw
    encoding: Literal["base64"] | None = None
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None
    signature: str | None = None


class Backend(Protocol):
    """Queue operations of the commands. Thread-safe."""

    def list_queues(self, prefix: str) -> Iterator[Data]: ...

    def create_queue(self, name: str, options: Mapping[str, Any]) -> tuple[Data, bool]:
        """Return the queue, and whether it was created."""

    def change_queue(self, name: str, options: Mapping[str, Any]) -> Data: ...

    def show_queue(self, name: str) -> Data: ...

    def drop_queue(self, name: str, *, force: bool) -> Data: ...

    def pause_queue(self, name: str, *, paused: bool) -> Data: ...

    def compact(self, name: str) -> None: ...

    def stats(self, name: str) -> Data: ...

    def purge(self, name: str, *, dead: bool, dry_run: bool) -> Data: ...

    def peek(self, name: str, *, state: str, limit: int) -> list[Data]:
        """Return up to `limit` messages without leasing them, reading as many pages as needed."""

    def requeue(self, name: str, *, where: Mapping[str, Any], rate_per_s: float | None, dry_run: bool) -> Data: ...

    def push(self, queue: str, messages: Sequence[Outgoing]) -> Data: ...

    def poll(
        self, queue: str, *, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
    ) -> list[Data]: ...

    def take(self, queue: str, *, batch: int, wait_ms: int) -> list[Data]:
        """Lease and acknowledge messages before returning them (at-most-once delivery)."""

    def settle(self, verb: Verb, queue: str, items: Sequence[Data], *, ms: int | None = None) -> Data: ...

    def get(self, queue: str, message_id: int) -> Data: ...

    def remove(self, queue: str, message_id: int) -> None: ...

    def export(self, queue: str) -> Iterator[bytes]:
        """Yield the queue's messages as lines of NDJSON."""

    def import_(self, queue: str, lines: Iterable[bytes]) -> Data:
        """Import the lines in one request."""

    def add_key(self, owner: KeyOwner, *, name: str, rights: Sequence[str]) -> Data: ...

    def list_keys(self, owner: KeyOwner) -> list[Data]: ...

    def remove_key(self, owner: KeyOwner, key_id: str) -> None: ...

    def workers(self) -> Iterator[Data]: ...

    def close(self) -> None: ...


def without_lease(message: Data) -> Data:
    """Return the message without its lease, which has ended."""
    return {name: value for name, value in message.items() if name not in ("token", "lease_expires_at")}
