"""A log as Spark's source sees it: ranges of offsets, wherever it lies. In a folder, or behind a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, OffsetTrimmed, ServerFault, Unauthorized, UnknownStream, Unreachable
from penstock.log.arrow import SCHEMA as RECORDS
from penstock.log.arrow import batches
from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.files import DISK
from penstock.log.reader import LogReader
from penstock.model import system_clock
from penstock.pipeline.journal import Part, parts_of, read_events

ARROW = "application/vnd.apache.arrow.stream"
PAGE_RECORDS = 10_000
ANSWER_SECONDS_MAX = 60


class AnyLog(Protocol):
    name: str

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def parts(self, start: int, end: int, count: int) -> list[Part]: ...

    def read(self, part: Part, columns: Sequence[str], skip_lost: bool) -> Iterator[pa.RecordBatch]: ...

    def report(self, consumer: str, offset: int) -> None:
        """The last record that a consumer has processed."""

    def close(self) -> None: ...


class FolderLog:
    """A journal, or a stream, that this machine can map."""

    def __init__(self, folder: Path, *, events: bool) -> None:
        self._events = events
        self._log = LogReader(folder)
        self.name = self._log.name

    @property
    def first_offset(self) -> int:
        return self._log.first_offset

    @property
    def next_offset(self) -> int:
        return self._log.next_offset

    def parts(self, start: int, end: int, count: int) -> list[Part]:
        return parts_of(self._log, start, end, count)

    def read(self, part: Part, columns: Sequence[str], skip_lost: bool) -> Iterator[pa.RecordBatch]:
        if self._events:
            return read_events(part, columns, skip_lost=skip_lost)
        return batches(self._log, part.start, part.end, columns)

    def report(self, consumer: str, offset: int) -> None:
        consumers = Consumers(self._log.folder, self.name, files=DISK, clock=system_clock)
        consumers.submit(CommitPosition(consumer, offset, force=True))

    def close(self) -> None:
        self._log.close()


class ServerLog:
    """A stream that a server hands out in pages of Arrow."""

    def __init__(self, url: str, stream: str, token: str | None) -> None:
        self.name = stream
        self._url = f"{url.rstrip('/')}/streams/{quote(stream, safe='')}"
        self._token = token

    @property
    def first_offset(self) -> int:
        return int(self._show()["first"])

    @property
    def next_offset(self) -> int:
        return int(self._show()["next"])

    def parts(self, start: int, end: int, count: int) -> list[Part]:
        size = -(-(end - start) // count)
        return [Part(self._url, low, min(end, low + size)) for low in range(start, end, size)]

    def read(self, part: Part, columns: Sequence[str], skip_lost: bool) -> Iterator[pa.RecordBatch]:
        at = part.start
        while at < part.end:
            limit = min(PAGE_RECORDS, part.end - at)
            body, following = self._ask("GET", f"/records?from={at}&limit={limit}", accept=ARROW, offset=at)
            for batch in pa.ipc.open_stream(body):
                yield batch.select(list(columns)).cast(pa.schema([RECORDS.field(name) for name in columns]))
            if following is None or following <= at:
                raise ServerFault(f"the server ends stream {self.name!r} at offset {at}", status=200)
            at = following

    def report(self, consumer: str, offset: int) -> None:
        body = msgspec.json.encode({"offset": offset, "force": True})
        self._ask("PUT", f"/consumers/{quote(consumer, safe='')}", body)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _show(self) -> dict[str, Any]:
        body, _ = self._ask("GET", "")
        return msgspec.json.decode(body, type=dict[str, Any])

    def _ask(
        self, method: str, path: str, body: bytes | None = None, accept: str = "*/*", offset: int = 0
    ) -> tuple[bytes, int | None]:
        request = Request(self._url + path, body, {"Accept": accept}, method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, timeout=ANSWER_SECONDS_MAX) as response:
                following = response.headers.get("x-penstock-next")
                return response.read(), None if following is None else int(following)
        except HTTPError as error:
            raise self._refused(error, offset) from None
        except (URLError, TimeoutError) as error:
            raise Unreachable(f"no answer from {self._url}: {error}", maybe_done=False) from None

    def _refused(self, error: HTTPError, offset: int) -> Exception:
        text = error.read(2000).decode(errors="replace")
        match error.code:
            case 401 | 403:
                return Unauthorized(f"the server refuses this token: {text}", hint="the option token")
            case 404:
                return UnknownStream(self.name)
            case 410:
                return OffsetTrimmed(self.name, offset, self.first_offset)
            case 400 | 422:
                return InvalidInput(text)
        return ServerFault(f"the server answered {error.code}: {text}", status=error.code)
