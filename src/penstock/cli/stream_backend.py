"""The backend interface of the stream commands, over HTTP or directly on files.

Results have the same fields as the HTTP API's responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cli.output import Data

if TYPE_CHECKING:
    from penstock.core.model import Progress


class StreamBackend(Protocol):
    def create(self, name: str, options: Mapping[str, Any]) -> Data: ...

    def list_all(self, prefix: str) -> Iterator[Data]: ...

    def show(self, name: str) -> Data:
        """Return the stream with its segments and consumers."""

    def drop(self, name: str, *, force: bool) -> Data: ...

    def trim(self, name: str, *, before: int | None, force: bool) -> Data: ...

    def append(self, name: str, records: Sequence[bytes], *, text: bool, key: str | None) -> Data:
        """Append records, as JSON values or as text. A server deduplicates appends with the same key."""

    def append_arrow(self, name: str, batches: Iterable[Any], *, key: str | None) -> Iterator[Data]:
        """Append record batches, yielding a result for each request."""

    def read(self, name: str, *, start: int | None, limit: int, wait_ms: int) -> Data: ...

    def read_arrow(self, name: str, *, start: int | None, limit: int | None) -> Iterator[Any]: ...

    def consumers(self, name: str) -> list[Data]: ...

    def commit(self, name: str, consumer: str, offset: int, *, force: bool) -> Data: ...

    def forget(self, name: str, consumer: str) -> None: ...

    def check(self, name: str, progress: Progress) -> Data: ...

    def repair(self, name: str, progress: Progress) -> Data: ...

    def close(self) -> None: ...
