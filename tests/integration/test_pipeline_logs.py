"""Spark reads a log from a folder, a database or a server with the same offsets, events and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest

from penstock.cli.journal_local import LocalJournal
from penstock.core.model import system_clock
from penstock.errors import CannotOpen, InvalidInput, OffsetTrimmed, Unauthorized, UnknownStream
from penstock.journal.arrow import SCHEMA
from penstock.pipeline.source.log_sources import SourceLog, location_of
from penstock.pipeline.source.offset_ranges import OffsetRange, end_within, parts_of
from penstock.pipeline.source.options import read_options, write_options
from penstock.pipeline.source.server_log import ServerLog
from penstock.pipeline.source.server_session import open_session
from penstock.store.factory import open_streams
from tests.conformance.support import push_command
from tests.integration.serving import running
from tests.spark.support import Busy, PostgresWork, Work

TOKEN = "a-token"


class SourceStore:
    """A store with traffic, and the location of its logs. A server is started on first use."""

    def __init__(self, work: Busy, where: str | None, streams: str) -> None:
        self.work = work
        self.streams = streams
        self.at_end = ExitStack()
        self._where = where

    @property
    def where(self) -> str:
        if self._where is None:
            server = self.at_end.enter_context(running(Path(self.streams).parent, auth_token=TOKEN))
            self._where = f"http://127.0.0.1:{server.port}"
        return self._where

    def open(self, stream: str | None = None) -> SourceLog:
        return location_of(self.where, stream, TOKEN).open()


@pytest.fixture(params=["folder", "postgres", "server"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceStore]:
    if request.param == "postgres":
        database = PostgresWork()
        found = SourceStore(database, database.where, database.where)
    else:
        work = Work(tmp_path / "data")
        # With the test clock the events would be years old, and a server would trim them at once.
        work.clock.set(system_clock())
        found = SourceStore(work, None if request.param == "server" else work.where, str(work.path))
    with found.at_end:
        yield found
    found.work.close_all()


def all_of(log: SourceLog, *columns: str) -> list[dict[str, Any]]:
    parts = parts_of(log.segments(), log.first_offset, log.next_offset, 3)
    found = [batch for part in parts for batch in log.read(part, columns or SCHEMA.names)]
    return pa.Table.from_batches(found).to_pylist()


def test_the_parts_cover_the_journal_exactly_once(source: SourceStore) -> None:
    source.work.some(80)
    source.work.drained()
    with closing(source.open()) as log:
        found = all_of(log)
    assert [(row["offset"], row["number"], row["kind"], row["id"], row["body"]) for row in found] == [
        (event.offset, event.number, event.kind, event.id, event.body)
        for event in source.work.events()
        if event.offset <= found[-1]["offset"]  # A server also records its own events.
    ]
    assert len(found) > 80


def test_only_requested_columns_are_read_in_their_order(source: SourceStore) -> None:
    source.work.push("a", "b")
    source.work.drained()
    with closing(source.open()) as log:
        found = [list(row.items()) for row in all_of(log, "id", "kind") if row["kind"] == "pushed"]
    (_, first), _ = found[0]
    assert found == [[("id", first), ("kind", "pushed")], [("id", first + 1), ("kind", "pushed")]]


def test_trimmed_offsets_are_an_error_or_skipped(source: SourceStore) -> None:
    source.work.push("old")
    source.work.forget_all_but_new()
    source.work.push("new")
    source.work.drained()
    with closing(source.open()) as log:
        everything = OffsetRange(0, log.next_offset)
        with pytest.raises(OffsetTrimmed, match="offset 0 of stream 'journal'") as error:
            list(log.read(everything, ["offset"]))
        assert error.value.first_offset == log.first_offset > 0
        batches = log.read(everything, ["offset", "body"], skip_lost=True)
        found = [row for batch in batches for row in batch.to_pylist()]
    assert found[0] == {"offset": error.value.first_offset, "body": b"new"}


def test_a_reported_position_is_listed_as_a_consumer(source: SourceStore) -> None:
    source.work.push("a")
    source.work.drained()
    with closing(source.open()) as log:
        log.report("spark:mine", 0, "pipeline")
        log.report("spark:mine", 0, "pipeline")
    with closing(LocalJournal(source.streams)) as journal:
        consumers: Any = journal.show()["consumers"]
    assert [(each["consumer"], each["offset"]) for each in consumers] == [("spark:mine", 0)]


def test_the_uid_of_a_log_is_stable(source: SourceStore) -> None:
    source.work.push("a")
    source.work.drained()
    with closing(source.open()) as log, closing(source.open()) as again:
        assert log.uid
        assert log.uid == again.uid


def test_a_wait_ends_when_there_is_an_event(source: SourceStore) -> None:
    source.work.push("a")
    source.work.drained()
    with closing(source.open()) as log:
        end = log.next_offset
        log.wait(end - 1, 30)
        waiting = threading.Thread(target=log.wait, args=(end, 30))
        waiting.start()
        source.work.push("b")
        source.work.drained()
        waiting.join(30)
        assert not waiting.is_alive()
        while b"b" not in _bodies(log, end):  # A server's own events end a wait as well.
            log.wait(log.next_offset, 30)


def test_a_stream_is_read_like_the_journal(source: SourceStore) -> None:
    with closing(open_streams(source.streams)) as streams:
        streams.create("a/b/c")
        streams.append("a/b/c", [b"one", b"two", b"three"])
    with closing(source.open("a/b/c")) as log:
        assert all_of(log, "data", "offset") == [
            {"data": data, "offset": offset} for offset, data in enumerate((b"one", b"two", b"three"))
        ]


def test_a_missing_stream_is_named(source: SourceStore) -> None:
    with pytest.raises((UnknownStream, CannotOpen), match="none"), closing(source.open("none")) as log:
        _ = log.next_offset


def test_a_server_requires_the_admin_token(tmp_path: Path) -> None:
    with running(tmp_path, auth_token=TOKEN) as server:
        url = f"http://127.0.0.1:{server.port}"
        with closing(location_of(url, token="another").open()) as log, pytest.raises(Unauthorized):
            _ = log.next_offset
        with server.client() as client:
            answer = client.get("/journal/events?columns=offset,bodies", accept="application/vnd.apache.arrow.stream")
        assert (answer.status, answer.json["field"]) == (422, "columns")


def test_a_server_is_read_without_the_environments_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with (
        running(tmp_path) as server,
        closing(open_session(f"http://127.0.0.1:{server.port}", None, retry_seconds=0)) as session,
    ):
        assert b"uid" in session.request("GET", "/journal")[0].body


class Redirecting(BaseHTTPRequestHandler):
    """Redirects every request to another host, and records the tokens that it receives."""

    target: ClassVar[str] = ""
    tokens: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_response(302)
        self.send_header("Location", self.target + self.path)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Suppress the request log."""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_token_is_not_sent_to_a_redirect_target(method: str) -> None:
    class Other(Redirecting):
        tokens: ClassVar[list[str | None]] = []

    class First(Redirecting):
        tokens: ClassVar[list[str | None]] = []

    with ExitStack() as stack:
        for handler in (Other, First):
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            First.target = First.target or f"http://localhost:{server.server_port}"
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
        session = open_session(f"http://127.0.0.1:{server.server_port}", TOKEN, retry_seconds=0)
        with closing(session), pytest.raises(InvalidInput) as refused:
            session.request(method, "/journal", b"x")
    assert First.tokens == [f"Bearer {TOKEN}"]
    assert Other.tokens == []
    assert f"redirects to '{First.target}/journal'" in str(refused.value)


@pytest.mark.parametrize("where", ["mysql://me:secret@db/queues", "s3a://bucket/data", "http:/host"])
def test_an_unsupported_url_is_refused_with_the_supported_ones(where: str) -> None:
    for options in (lambda: read_options({"url": where}).open(), lambda: write_options({"url": where, "queue": "q"})):
        with pytest.raises(InvalidInput, match="unsupported URL") as error:
            options()
        assert "postgresql://" in (error.value.hint or "")
        assert "secret" not in str(error.value)


def test_a_server_url_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidInput, match="must not contain a user or password") as error:
        location_of("http://me:secret@127.0.0.1:8888").open()
    assert "secret" not in str(error.value)


def test_a_folder_can_be_given_as_a_file_url() -> None:
    for where in ("/var/data", "file:/var/data", "file:///var/data"):
        assert read_options({"path": where}).location == "/var/data"


def test_a_late_commit_is_read_once_and_blocks_no_reader() -> None:
    work = PostgresWork()
    try:
        work.make("q")
        work.drained()
        with closing(location_of(work.where).open()) as log:
            start = log.next_offset
            with psycopg.connect(str(work.path)) as late:
                # A push in a caller's transaction is numbered when it runs, so before pushes that commit earlier.
                work.push_on(late, push_command("late"))
                work.push("soon")
                work.drained()
                assert _bodies(log, start) == [b"soon"]
                middle = log.next_offset
                late.commit()
            work.drained()
            assert _bodies(log, middle) == [b"late"]
            assert _bodies(log, start) == [b"soon", b"late"]
    finally:
        work.close_all()


def _bodies(log: SourceLog, start: int) -> list[bytes]:
    return [
        row["body"] for batch in log.read(OffsetRange(start, log.next_offset), ["body"]) for row in batch.to_pylist()
    ]


def test_ranges_are_cut_evenly_by_bytes_and_steps_are_bounded(tmp_path: Path) -> None:
    work = Work(tmp_path / "data")
    work.some(120)
    work.drained()
    with closing(location_of(work.where).open()) as log:
        parts = parts_of(log.segments(), 3, log.next_offset, 4)
        assert [(one.end) for one in parts[:-1]] == [other.start for other in parts[1:]]
        assert (parts[0].start, parts[-1].end, len(parts)) == (3, log.next_offset, 4)
        end = 0
        steps = 0
        while end < log.next_offset:
            end = end_within(log.segments(), end, log.next_offset, 4_000)
            steps += 1
        assert steps > 2
    work.close_all()


def test_reading_waits_until_a_new_servers_journal_has_a_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server, server.client() as client:
        client.queue("q")
        with closing(location_of(f"http://127.0.0.1:{server.port}").open()) as log:
            expected = log.uid
            show = ServerLog._show
            answers: Iterator[dict[str, Any]] = iter([{**show(log), "uid": ""}])
            monkeypatch.setattr(ServerLog, "_show", lambda self: next(answers, None) or show(self))
            assert log.uid == expected != ""
