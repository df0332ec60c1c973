"""`penstock stream …`, over HTTP and on the files."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import stream_append
from penstock.cli.output import Data
from penstock.log.streams import streams_beside
from tests.integration.command_line import Queues, penstock, server, spawn


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("streams")
    with server(folder) as address:
        yield address, folder / "data" / "penstock.db"


@pytest.fixture(params=["http", "db"])
def streams(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> Queues:
    """A server or a file with a new stream."""
    if request.param == "http":
        found = Queues(("--url", request.getfixturevalue("served")[0]), "http")
    else:
        found = Queues(("--db", str(tmp_path / "q.db")), "db")
    found.ok("stream", "create", name)
    return found


@pytest.fixture
def database(streams: Queues, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = request.getfixturevalue("served")[1] if streams.kind == "http" else tmp_path / "q.db"
    return found


def values(streams: Queues, name: str) -> list[Any]:
    return [record["data"] for record in streams.json("stream", "read", name)["records"]]


def test_a_stream_is_created_filled_read_and_deleted(streams: Queues, name: str) -> None:
    made = streams.json("stream", "create", f"{name}-b", "--retention-ms", "1000", "--segment-bytes", "65536")
    assert (made["options"]["retention_ms"], made["options"]["segment_bytes"]) == (1000, 65_536)
    again = streams.run("stream", "create", f"{name}-b")
    assert (again.code, "other options" in again.err) == (1, True)
    listed = streams.json("stream", "list", "--prefix", f"{name}-")["streams"]
    assert [each["name"] for each in listed] == [f"{name}-b"]
    assert f"{name}-b" in streams.ok("stream", "list")
    streams.ok("stream", "append", name, "--record", "hello")
    assert "next                1" in streams.ok("stream", "show", name)
    set_ = streams.json("stream", "consumers", name, "--set", "billing=0")["consumers"]
    assert [(each["consumer"], each["offset"], each["lag"]) for each in set_] == [("billing", 0, 0)]
    assert streams.run("stream", "consumers", name, "--set", "billing=-1").code == 1
    streams.ok("stream", "consumers", name, "--set", "billing=-1", "--force")
    assert "billing" in streams.ok("stream", "show", name)
    in_use = streams.run("stream", "rm", name)
    assert (in_use.code, "--force" in in_use.err) == (1, True)
    assert streams.json("stream", "consumers", name, "--forget", "billing") == {"consumers": []}
    assert streams.json("stream", "rm", name) == {"dropped": name}
    gone = streams.run("stream", "show", name)
    assert (gone.code, "penstock stream create" in gone.err) == (1, True)


def test_lines_are_returned_unchanged(streams: Queues, name: str) -> None:
    lines = '1\n"two"\n{"three":[3]}\n{"data":"/w==","encoding":"base64"}\n'
    done = streams.json("stream", "append", name, stdin=lines.encode() + b"\n")
    assert done == {"first": 0, "last": 3, "records": 4, "again": 0}
    assert streams.ok("stream", "read", name, "--ndjson") == lines
    assert streams.ok("stream", "read", name, "--ndjson", "--from", "1", "--limit", "1") == '"two"\n'
    streams.ok("stream", "append", name, "--lines", stdin="grüß \n\nGott".encode())
    page = streams.json("stream", "read", name, "--from", "4")
    assert ([record["data"] for record in page["records"]], page["next"]) == (["grüß ", "", "Gott"], 7)
    table = streams.ok("stream", "read", name, "--limit", "3")
    assert [line.split()[0] for line in table.splitlines()] == ["OFFSET", "0", "1", "2"]


def test_a_bad_line_in_a_pipe_stops_with_a_hint_to_continue(streams: Queues, name: str, tmp_path: Path) -> None:
    cut = streams.run("stream", "append", name, "--batch", "2", stdin=b"1\n2\n3\nx\n5\n")
    assert (cut.code, cut.out) == (3, "")
    assert "line 4 of stdin" in cut.err
    assert "--skip 3" in cut.err
    streams.ok("stream", "append", name, "--skip", "4", stdin=b"1\n2\n3\nx\n5\n")
    assert values(streams, name) == [1, 2, 3, 5]
    file = tmp_path / "lines"
    file.write_bytes(b"1\nx\n")
    whole = streams.run("stream", "append", name, "--file", str(file))
    assert whole.code == 1
    assert streams.run("stream", "append", name, stdin=b"").code == 1
    assert values(streams, name) == [1, 2, 3, 5]


def test_a_file_appended_again_is_recognised(streams: Queues, name: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(25)))
    flags = ("stream", "append", name, "--file", str(file), "--batch", "10")
    assert streams.json(*flags)["records"] == 25
    again = streams.json(*flags)
    if streams.kind == "http":
        assert again == {"first": 0, "last": 24, "records": 25, "again": 25}
        assert streams.json(*flags, "--again")["again"] == 0
    assert values(streams, name) == [*range(25)] * 2


def interrupt(monkeypatch: pytest.MonkeyPatch, *, call: int, times: int) -> None:
    """Interrupt an append just after its batch was committed."""
    append, calls = stream_append.send, iter(range(1, 1_000))

    def interrupted(*arguments: Any, **named: Any) -> Data:
        done = append(*arguments, **named)
        if next(calls) == call:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return done

    monkeypatch.setattr(stream_append, "send", interrupted)


def test_an_interrupt_reports_the_appended_lines(streams: Queues, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"".join(b"%d\n" % number for number in range(25))
    with monkeypatch.context() as patched:
        interrupt(patched, call=2, times=1)
        cut = streams.run("stream", "append", name, "--batch", "10", stdin=lines)
    assert (cut.code, cut.err.strip()) == (130, "20 records are appended; continue with --skip 20")
    streams.ok("stream", "append", name, "--skip", "20", stdin=lines)
    assert values(streams, name) == [*range(25)]


def test_a_second_interrupt_stops_at_once_and_reports_certain_lines(
    streams: Queues, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, call=2, times=2)
    cut = streams.run("stream", "append", name, "--batch", "1", stdin=b"1\n2\n3\n")
    assert cut.code == 130
    assert cut.err.startswith("at least 1 records are appended; check where the stream ends")
    assert values(streams, name) == [1, 2]


def test_an_append_resumed_with_other_batches_explains_how_to_continue(
    streams: Queues, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("1\n2\n3\n")
    streams.ok("stream", "append", name, "--file", str(file), "--batch", "2")
    again = streams.run("stream", "append", name, "--file", str(file), "--batch", "3")
    if streams.kind == "http":
        assert (again.code, "(continue with the same --batch, or with --skip)" in again.err) == (1, True)


def test_arrow_files_can_be_appended_and_read(streams: Queues, name: str, tmp_path: Path) -> None:
    table = pa.table({"data": [b"%d" % number for number in range(12_000)]})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as writer:
        writer.write_table(table)
    done = streams.json("stream", "append", name, "--arrow", str(tmp_path / "in.arrow"))
    assert (done["first"], done["last"], done["records"]) == (0, 11_999, 12_000)
    out = tmp_path / "out.arrows"
    assert streams.json("stream", "read", name, "--arrow", str(out))["records"] == 12_000
    assert pa.ipc.open_stream(out).read_all()["offset"].to_pylist() == list(range(12_000))
    assert streams.json("stream", "append", name, "--arrow", str(out))["first"] == 12_000
    streams.ok("stream", "read", name, "--arrow", str(out), "--from", "5", "--limit", "2")
    assert pa.ipc.open_stream(out).read_all()["data"].to_pylist() == [b"5", b"6"]
    out.write_bytes(b"no arrow")
    assert streams.run("stream", "append", name, "--arrow", str(out)).code == 1


def test_tail_follows_new_records(streams: Queues, name: str) -> None:
    streams.ok("stream", "append", name, stdin=b"1\n2\n3\n")
    flags = ("stream", "tail", name, "--lines", "2", "--json", *streams.flags)
    with spawn(*flags, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["data"] for _ in range(2)] == [2, 3]
        streams.ok("stream", "append", name, "--record", "four")
        assert json.loads(process.stdout.readline())["data"] == "four"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert streams.ok("stream", "tail", name, "--from", "0", "--limit", "3", "--ndjson") == "1\n2\n3\n"
    shown = streams.ok("stream", "tail", name, "--from", "3", "--limit", "1")
    assert (shown.split()[0], '"four"' in shown) == ("3", True)


def test_check_finds_damage_and_repair_fixes_it(streams: Queues, name: str, database: Path) -> None:
    streams.ok("stream", "append", name, stdin=b'"good"\n"secret"\n"fine"\n')
    assert streams.json("stream", "check", name)["ok"]
    [log] = (streams_beside(database) / "flat" / name).glob("*.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"secret")] ^= 1
    log.write_bytes(content)
    checked = streams.run("stream", "check", name, "--json")
    assert checked.code == 1
    [finding] = checked.json["findings"]
    assert (finding["trouble"], finding["first"], finding["segment"]) == ("corrupt", 1, log.name)
    assert streams.run("stream", "read", name, "--from", "1").code == 1
    repaired = streams.run("stream", "repair", name)
    assert repaired.code == 3
    assert "corrupt" in repaired.out
    assert "secret" not in repaired.out + repaired.err + checked.out
    assert values(streams, name) == ["good", "fine"]
    assert streams.run("stream", "check", name).code == 0
    assert streams.run("stream", "repair", name).code == 0


def test_trim_removes_old_records(streams: Queues, name: str) -> None:
    streams.ok("stream", "create", f"{name}-small", "--segment-bytes", "65536")
    line = json.dumps("x" * 20_000).encode() + b"\n"
    for _ in range(3):
        streams.ok("stream", "append", f"{name}-small", stdin=line * 3)
    trimmed = streams.json("stream", "trim", f"{name}-small", "--before", "6")
    assert (trimmed["first"], trimmed["removed_segments"]) == (6, 2)
    gone = streams.run("stream", "read", f"{name}-small", "--from", "0")
    assert (gone.code, "first kept is 6" in gone.err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "a b"),
        ("create", "s", "--segment-bytes", "1"),
        ("append", "s", "--record", "x", "--file", "-"),
        ("read", "s", "--from", "-1"),
        ("read", "s", "--from", "99"),
        ("read", "s", "--ndjson", "--arrow", "-"),
        ("consumers", "s", "--set", "c"),
        ("consumers", "s", "--set", "a b=1"),
        ("show",),
    ],
)
def test_invalid_usage_is_refused(served: tuple[str, Path], tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for flags in (("--url", served[0]), ("--db", str(tmp_path / "q.db"))):
        penstock("stream", "create", "s", *flags)
        refused = penstock("stream", *arguments, *flags)
        assert (refused.code, refused.out) == (2, ""), refused
        assert refused.err.count("\n") == 1


def test_listing_streams_of_a_missing_file_creates_nothing(tmp_path: Path) -> None:
    nothing = penstock("stream", "list", "--db", str(tmp_path / "q.db"))
    assert (nothing.code, "penstock stream create" in nothing.err) == (1, True)
    assert not list(tmp_path.iterdir())
    assert penstock("stream", "list", "--url", "http://127.0.0.1:9").code == 5


def test_an_append_to_a_stream_in_use_goes_through_its_server(served: tuple[str, Path], name: str) -> None:
    url, database = served
    over_http, files = Queues(("--url", url), "http"), Queues(("--data", str(database.parent)), "db")
    over_http.ok("stream", "create", name)
    over_http.ok("stream", "append", name, "--record", "x")
    assert values(files, name) == ["x"]
    refused = files.run("stream", "append", name, "--record", "y")
    assert (refused.code, "append through that process" in refused.err) == (1, True)
    assert files.json("stream", "check", name)["ok"]
