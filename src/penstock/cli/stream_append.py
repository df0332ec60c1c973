"""`penstock stream append`: append one record, the lines of a file or a pipe, or Arrow data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from penstock.cli.common import DATA_DECODER, PARTLY, CommandFailed, fail, on_streams, stream_path
from penstock.cli.lines import STDIN, BadLine, InputLines
from penstock.cli.output import Data, Output, note, plain, progress
from penstock.cli.stream import NAME
from penstock.core.signals import defer_interrupt
from penstock.errors import LogFailed, PenstockError, Unreachable

if TYPE_CHECKING:
    from penstock.cli.common import Streams
    from penstock.client._sync.http_session import Session

BATCH_BYTES = 4 << 20


@click.command("append")
@NAME
@click.option("--record", help="A record, as text.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File with one record per line; - reads stdin.",
)
@click.option(
    "--arrow", type=click.Path(exists=True, dir_okay=False), help="Arrow IPC file; the column `data` has the records."
)
@click.option("--lines", is_flag=True, help="Treat lines as text, not JSON.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip the first N lines.")
@click.option("--again", is_flag=True, help="Append a file even if it was just appended.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Lines per commit.")
@on_streams()
def append(
    streams: Streams,
    out: Output,
    name: str,
    record: str | None,
    file: str | None,
    arrow: str | None,
    lines: bool,
    skip: int,
    again: bool,
    batch: int,
) -> None:
    """Append one record, each line of a file (NDJSON, or text with --lines), or an Arrow file.

    After an interruption, run the same command again: a server remembers for 15 minutes what it has of a file, so the
    command continues where it stopped and appends nothing twice. Later, or without a server, use --skip.

    JSON: {"first", "last", "records", "again"}; `again` counts records that were appended before.
    """
    given = [each for each in (record, file, arrow) if each is not None]
    if len(given) > 1:
        raise click.UsageError("give one of --record, --file and --arrow")
    if not given:
        file = STDIN
    done = AppendsDone()
    try:
        if record is not None:
            with done.counting():
                done.add(send(streams, name, [record.encode()], text=True, key=None))
        elif arrow is not None:
            _append_arrow(streams, name, Path(arrow), done, keyed=not again)
        else:
            assert file is not None
            _append_lines(streams, name, RecordLines(file, lines, skip, keyed=not again), batch, done)
    except BadLine as error:
        raise CommandFailed(f"{error}{done.so_far()}", PARTLY if done.records else 1) from None
    except PenstockError as error:
        done.fail(error)
    except KeyboardInterrupt:
        note(done.so_far().strip(" ()") or "nothing was appended")
        raise
    if not done.records:
        raise CommandFailed("there are no records to append")
    shown = done.data()
    out.show(shown, lambda: out.fields(shown))
    if done.again and not out.as_json:
        note(f"{done.again} records were appended before; --again appends them once more")


class AppendsDone:
    """Counts what has been appended so far."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.records = self.again = 0
        self.line = 0  # The last line that was appended.
        self.unsure = False  # True if more may be appended than the responses say.

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Wrap one append and its counting, because an interrupt between the two would lose count."""
        try:
            with defer_interrupt():
                self.unsure = True
                yield
                self.unsure = False
        except PenstockError as error:
            self.unsure = error.maybe_done or error.code == "unreachable" or isinstance(error, LogFailed)
            raise

    def add(self, appended: Data) -> None:
        self.first = appended["first"] if self.first is None else self.first
        self.last = appended["last"]
        self.records += appended["records"]
        self.again += appended["records"] if appended.get("again") else 0

    def data(self) -> Data:
        return {"first": self.first, "last": self.last, "records": self.records, "again": self.again}

    def so_far(self) -> str:
        if not self.records and not self.unsure:
            return ""
        hint = f"; continue with --skip {self.line}" if self.line else ""
        if self.unsure:
            return f" (at least {self.records} records are appended; check where the stream ends{hint})"
        return f" ({self.records} records are appended{hint})"

    def fail(self, error: PenstockError) -> NoReturn:
        if self.records:
            error.hint = self.so_far().strip(" ()")
        elif error.code == "key_reused":
            error.hint = "continue with the same --batch, or with --skip"
        fail(error, code=PARTLY if self.records else None)


class RecordLines(InputLines):
    """Reads lines as records."""

    def __init__(self, name: str, text: bool, skip: int, *, keyed: bool) -> None:
        super().__init__(name)
        self.text = text
        self._skip = skip
        content_key = self.check_all(
            lambda number, line: self._check(number, line.rstrip(b"\r\n")), b"text" if text else b"json"
        )
        # The records of a pipe have no key.
        self.key = content_key if keyed else None

    def _check(self, number: int, line: bytes) -> None:
        from penstock.wire.strict_json import check_json

        try:
            if self.text:
                line.decode()
            elif line.strip():
                check_json(line)
        except (PenstockError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.args[0])
            raise self.bad(number, reason) from None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for number, line in self.read():
            record = line.rstrip(b"\r\n") if self.text else line.strip()
            if number > self._skip and (record or self.text):
                if self.total is None:
                    self._check(number, record)
                yield number, record


def _append_lines(streams: Streams, name: str, lines: RecordLines, batch: int, done: AppendsDone) -> None:
    waiting: list[bytes] = []
    first = size = 0

    def flush() -> None:
        if waiting:
            key = None if lines.key is None else f"{lines.key}:{first}"
            with done.counting():
                done.add(send(streams, name, waiting, text=lines.text, key=key))
                done.line = number
            advance(len(waiting))
            waiting.clear()

    with progress(f"append {lines.name}", lines.total) as advance:
        number = 0
        try:
            for number, record in lines:
                if not waiting:
                    first, size = number, 0
                waiting.append(record)
                size += len(record)
                if len(waiting) >= batch or size >= BATCH_BYTES:
                    flush()
        except BadLine:
            flush()
            raise
        flush()


def send(streams: Streams, name: str, records: Sequence[bytes], *, text: bool, key: str | None) -> Data:
    """Append records, as JSON values or as text. A server deduplicates appends with the same key."""
    if streams.kind == "server":
        values = [record.decode() if text else msgspec.Raw(record) for record in records]
        return _post(streams.session, name, msgspec.json.encode({"records": values}), key)
    from penstock.core.model import Content
    from penstock.log.model import NewRecord
    from penstock.wire.new_records import new_record

    if text:
        return plain(streams.append(name, [NewRecord(record, Content.TEXT) for record in records]))
    return plain(streams.append(name, [new_record(msgspec.Raw(record), "records") for record in records]))


def _send_arrow(streams: Streams, name: str, batches: Iterable[Any], key: str | None) -> Iterator[Data]:
    """Append record batches, yielding a result for each request or commit."""
    if streams.kind == "server":
        from penstock.client.stream_json import ARROW, arrow_bodies

        for number, body in enumerate(arrow_bodies(batches)):
            yield _post(streams.session, name, body, None if key is None else f"{key}:{number}", content_type=ARROW)
    else:
        from penstock.wire.arrow_records import in_commits, payloads_of

        for batch in batches:
            for payloads in in_commits(payloads_of(batch)):
                done = streams.opened().append(name, payloads)
                yield {"first": done.first, "last": done.last, "records": len(payloads)}


def _post(session: Session, name: str, body: bytes, key: str | None, **how: Any) -> Data:
    """Append with the user's key, unlike the SDK, which makes one for each call."""
    headers = b"" if key is None else f"idempotency-key: {key}\r\n".encode()

    def post() -> Data:
        answer, _ = session.request("POST", f"{stream_path(name)}/records", body, queue=name, headers=headers, **how)
        done: Data = session.read(DATA_DECODER, answer)
        return done | {"again": answer.status == 200}

    try:
        return post()
    except Unreachable:
        # Only an append with a key can be sent again safely.
        if key is None:
            raise
        return post()


def _append_arrow(streams: Streams, name: str, path: Path, done: AppendsDone, *, keyed: bool) -> None:
    from penstock.wire.arrow_records import check_arrow

    check_arrow()
    key = None
    if keyed:
        with path.open("rb") as file:
            key = f"file:{hashlib.file_digest(file, 'sha256').hexdigest()[:40]}"
    with progress(f"append {path}", None) as advance:
        parts = _send_arrow(streams, name, _arrow_batches(path), key)
        while True:
            with done.counting():
                part = next(parts, None)
                if part is None:
                    return
                done.add(part)
            advance(part["records"])


def _arrow_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_file(source)
                yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
    except pa.ArrowInvalid as error:
        raise CommandFailed(f"{path} is not an Arrow file: {error}") from None
