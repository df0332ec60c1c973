"""`penstock export`, `import`, `backup`, `restore`, `bench`, `doctor` and `completion`."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import LiteQueue
from penstock.ops import doctor
from penstock.store.sqlite.connection import connect
from tests.integration.command_line import PENSTOCK, Queues, clean_environment, penstock, server

EXPORTED = b'{"id":1}\n{"id":2}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with server(folder) as address:
        yield address


@pytest.fixture(params=["http", "db"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queues]:
    if request.param == "http":
        queues = Queues(("--url", request.getfixturevalue("url")), "http")
    else:
        queues = Queues(("--db", str(tmp_path / "q.db")), "db")
    queues.ok("queue", "add", "--name", "from")
    queues.ok("queue", "add", "--name", "to")
    yield queues
    for name in ("from", "to"):
        queues.run("queue", "rm", "--name", name, "--force")


def fill(queues: Queues, count: int) -> None:
    lines = "\n".join(map(str, range(count))).encode()
    queues.ok("message", "enqueue", "--queue", "from", "--file", "-", stdin=lines)


def test_an_export_is_imported_completely_and_once(queues: Queues, tmp_path: Path) -> None:
    fill(queues, 2_500)
    file = tmp_path / "export.ndjson"
    exported = queues.json("export", "--queue", "from", "--file", str(file))
    assert exported == {"exported": 2_500, "file": str(file)}
    lines = file.read_text().splitlines()
    assert [json.loads(line)["payload"] for line in lines] == list(range(2_500))
    assert queues.ok("export", "--queue", "from").splitlines() == lines
    done = queues.json("import", "--queue", "to", "--file", str(file))
    assert done == {"imported": 2_500, "duplicates": 0, "skipped": 0}
    again = queues.json("import", "--queue", "to", stdin=file.read_bytes())
    assert again == {"imported": 0, "duplicates": 2_500, "skipped": 0}
    seen = queues.json("queue", "peek", "--name", "to", "--limit", "3000")["messages"]
    assert [message["payload"] for message in seen] == list(range(2_500))


def test_an_import_into_its_source_queue_adds_nothing(queues: Queues) -> None:
    fill(queues, 3)
    exported = queues.ok("export", "--queue", "from").encode()
    done = queues.json("import", "--queue", "from", stdin=exported)
    assert done == {"imported": 0, "duplicates": 3, "skipped": 0}


def test_an_export_overwrites_only_with_force(queues: Queues, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    refused = queues.run("export", "--queue", "from", "--file", str(file))
    assert (refused.code, file.read_text()) == (1, "mine")
    assert queues.run("export", "--queue", "from", "--file", str(file), "--force").code == 0
    assert file.read_text() == ""
    assert queues.run("export", "--queue", "nowhere").code == 1


def test_a_file_that_is_not_an_export_is_refused_with_line_numbers(queues: Queues) -> None:
    good = b'{"payload": 1}\n' * 1_000
    refused = queues.run("import", "--queue", "to", stdin=good + b"{broken\n")
    assert refused.code == 3
    assert refused.err.startswith("error: line 1001")
    assert "1000 messages before it are imported" in refused.err
    assert queues.run("import", "--queue", "to", stdin=b"{broken\n").code == 2
    assert queues.run("import", "--queue", "to", stdin=b'{"payload": 5, "content": "text"}').code == 2
    assert queues.run("import", "--queue", "nowhere", stdin=b'{"payload": 1}').code == 1


@pytest.mark.parametrize("bad", [b"{broken", b'{"payload": 5, "content": "text"}', b'{"payload": 1, "priority": "x"}'])
@pytest.mark.parametrize("before", [0, 1_500])
def test_an_invalid_line_is_named_by_its_number(queues: Queues, bad: bytes, before: int) -> None:
    lines = [b'{"payload": 1}'] * before + [b'{"payload": 1}', b"", b'{"payload": 2}', b"  ", bad, b'{"payload": 3}']
    refused = queues.run("import", "--queue", "to", stdin=b"\n".join(lines))
    assert re.match(rf"error: line {before + 5}\b", refused.err), refused.err
    assert refused.code == (3 if before else 2)


def test_a_running_server_can_be_backed_up_but_not_overwritten(url: str, folder: Path, tmp_path: Path) -> None:
    queues = Queues(("--url", url), "http")
    queues.ok("queue", "add", "--name", "kept")
    queues.ok("message", "enqueue", "--queue", "kept", "--payload", '"precious"')
    copy = tmp_path / "copy.db"
    made = penstock("backup", str(copy), "--data", str(folder / "data"), "--json")
    assert (made.json["backup"], made.json["bytes"]) == (str(copy), copy.stat().st_size)
    assert penstock("backup", str(copy), "--data", str(folder / "data")).code == 1
    refused = penstock("restore", str(copy), "--data", str(folder / "data"), "--force")
    assert (refused.code, "another process has" in refused.err) == (1, True)
    assert penstock("restore", str(copy), "--data", str(tmp_path / "new"), "--json").json["bytes"] > 0
    restored = Queues(("--data", str(tmp_path / "new")), "data")
    assert restored.json("message", "get", "--queue", "kept")["messages"][0]["payload"] == "precious"
    assert queues.json("stats", "--queue", "kept")["ready"] == 1


def test_a_restore_overwrites_only_with_force_and_only_with_a_backup(tmp_path: Path) -> None:
    place = Queues(("--db", str(tmp_path / "q.db")), "db")
    place.ok("queue", "add", "--name", "before")
    place.ok("backup", str(tmp_path / "copy.db"))
    place.ok("queue", "add", "--name", "after")
    refused = place.run("restore", str(tmp_path / "copy.db"))
    assert (refused.code, "--force" in refused.err) == (1, True)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t (a)").connection.close()
    text = tmp_path / "text"
    text.write_text("no database at all" * 100)
    for wrong in (other, text):
        assert place.run("restore", str(wrong), "--force").code == 1
    assert [queue["name"] for queue in place.json("queue", "list")["queues"]] == ["after", "before"]
    (tmp_path / "copy.db").chmod(0o400)
    place.ok("restore", str(tmp_path / "copy.db"), "--force")
    assert [queue["name"] for queue in place.json("queue", "list")["queues"]] == ["before"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "other.db", "q.db", "text"]


def test_a_restore_replaces_a_damaged_file(tmp_path: Path) -> None:
    place = Queues(("--db", str(tmp_path / "q.db")), "db")
    place.ok("queue", "add", "--name", "q")
    place.ok("backup", str(tmp_path / "copy.db"))
    (tmp_path / "q.db").write_bytes(b"garbage" * 1_000)
    assert place.run("queue", "list").code == 1
    place.ok("restore", str(tmp_path / "copy.db"), "--force")
    assert place.json("queue", "list")["queues"][0]["name"] == "q"


def test_backup_and_restore_work_on_files_only(tmp_path: Path) -> None:
    for command in (("backup", str(tmp_path / "x")), ("restore", __file__)):
        refused = penstock(*command)
        assert (refused.code, "--data DIR" in refused.err) == (2, True)


def test_a_bench_reports_each_phase_and_leaves_nothing(queues: Queues) -> None:
    report = queues.json("bench", "--messages", "300", "--batch", "20", "--clients", "3")
    assert (report["messages"], report["batch"], report["clients"], report["payload_bytes"]) == (300, 20, 3, 200)
    assert [phase["phase"] for phase in report["phases"]] == ["push", "lease", "ack", "cycle"]
    for phase in report["phases"]:
        assert phase["msg_s"] > 0
        assert 0 < phase["p50_ms"] <= phase["p99_ms"]
        assert phase["calls"] == 15
    left = [queue["name"] for queue in queues.json("queue", "list")["queues"]]
    assert not any(name.startswith("bench-") for name in left)
    assert queues.ok("bench", "--messages", "10").splitlines()[0].split()[:2] == ["PHASE", "MSG/S"]


def test_an_interrupted_bench_removes_its_queue(queues: Queues) -> None:
    command = [sys.executable, "-m", "penstock", "bench", "--messages", "10000000", *queues.flags]
    process = subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE)

    def left() -> list[str]:
        names = [queue["name"] for queue in queues.json("queue", "list")["queues"]]
        return [name for name in names if name.startswith("bench-")]

    while not left():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip(), left()) == (130, b"", [])


def test_a_backup_into_a_missing_folder_names_the_path(tmp_path: Path) -> None:
    place = Queues(("--db", str(tmp_path / "q.db")), "db")
    place.ok("queue", "add", "--name", "q")
    refused = place.run("backup", str(tmp_path / "nowhere" / "copy.db"))
    assert refused.code == 1
    assert refused.err.startswith(f"error: cannot write {tmp_path}/nowhere/copy.db: the folder")


def test_the_doctor_checks_a_file(tmp_path: Path) -> None:
    Queues(("--db", str(tmp_path / "q.db")), "db").ok("queue", "add", "--name", "q")
    findings = penstock("doctor", str(tmp_path / "q.db"), "--json")
    assert findings.code == 0
    assert {finding["level"] for finding in findings.json} <= {"ok", "note"}


def test_concurrent_writes_do_not_mislead_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.db"
    put: list[str] = []
    with LiteQueue(path) as queue:

        def write(statement: str) -> None:
            if "count(*) FROM penstock_scheduled" in statement:
                put.append(queue.put(b"x", delay=60))

        def watched(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options)
            connection.set_trace_callback(write)
            return connection

        monkeypatch.setattr(doctor, "connect", watched)
        findings = {finding.what: finding for finding in doctor.examine(path)}
    assert len(put) == 1
    assert findings["messages"].detail == "0 ready, 0 scheduled, 0 leased, 0 dead, 0 archived"


def create_foreign_database(path: Path) -> bytes:
    """Create a SQLite file that is not a Penstock database, and return its bytes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customer (name TEXT)")
        connection.commit()
    return path.read_bytes()


@pytest.mark.parametrize(
    "command",
    [
        ("stats",),
        ("queue", "list"),
        ("message", "enqueue", "--queue", "q", "--payload", "1"),
        ("backup", "copy.db"),
        ("journal", "show"),
    ],
)
def test_a_foreign_file_is_left_unchanged(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "app.db"
    before = create_foreign_database(path)
    refused = penstock(*command, "--db", str(path))
    assert (refused.code, f"{path} is not a Penstock database" in refused.err) == (1, True)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["app.db"]


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_doctor_names_a_file_whose_name_is_not_utf_8(flags: tuple[str, ...]) -> None:
    looked = penstock("doctor", "\udcff", *flags)
    assert looked.code == 1
    assert "is not there" in looked.out


def test_the_doctor_leaves_a_foreign_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    before = create_foreign_database(path)
    looked = penstock("doctor", str(path))
    assert (looked.code, "holds no Penstock tables" in looked.out) == (1, True)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["app.db"]


def test_a_file_without_queues_is_a_penstock_database(tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "q.db"):
        pass
    assert penstock("queue", "list", "--db", str(tmp_path / "q.db")).code == 0


def test_journal_commands_refuse_a_file_without_a_journal(tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "q.db") as queue:
        queue.put(b"x")
    for verb in ("show", "tail"):
        refused = penstock("journal", verb, "--db", str(tmp_path / "q.db"))
        assert (refused.code, "has no journal (enable it with LiteQueue(" in refused.err) == (1, True)
    assert not (tmp_path / "q.db.journal").exists()
    with LiteQueue(tmp_path / "q.db", journal=True) as queue:
        queue.put(b"y")
        assert penstock("journal", "show", "--db", str(tmp_path / "q.db")).code == 0
    refused = penstock("journal", "tail", "--kind", "pushed,nosuch", "--db", str(tmp_path / "q.db"))
    assert (refused.code, "expected one of queue, pushed, leased" in refused.err) == (2, True)


def test_the_doctor_refuses_a_folder_and_advises_on_a_damaged_file(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder" in penstock("doctor", str(tmp_path)).out
    path = tmp_path / "q.db"
    Queues(("--db", str(path)), "db").ok("queue", "add", "--name", "q")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 2_000 + whole[2_100:])
    damaged = penstock("doctor", str(path))
    assert (damaged.code, "restore the last backup" in damaged.out) == (1, True)
    assert "penstock doctor" not in damaged.out


def test_the_doctor_names_files_that_are_not_writable(tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "q.db"):
        beside = tmp_path / "q.db-shm"
        beside.chmod(0o400)
        looked = penstock("doctor", str(tmp_path / "q.db"))
    assert (looked.code, f"chmod u+w {beside}" in looked.out) == (1, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    script = penstock("completion", shell)
    assert script.code == 0
    assert "_PENSTOCK_COMPLETE" in script.out


def test_bash_completes_commands(tmp_path: Path) -> None:
    script = penstock("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    env = clean_environment(_PENSTOCK_COMPLETE="bash_complete", COMP_WORDS="penstock queue re", COMP_CWORD="2")
    completed = subprocess.run([PENSTOCK], env=env, capture_output=True, text=True, timeout=60)
    assert completed.stdout.split() == ["plain,requeue-dlq", "plain,resume"]


@pytest.mark.parametrize(
    "framing",
    [
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(EXPORTED), EXPORTED),
        b"content-length: %d\r\n\r\n%b" % (len(EXPORTED) + 1, EXPORTED),
    ],
)
def test_a_truncated_export_is_an_error(tmp_path: Path, framing: bytes) -> None:
    """The connection ends between two lines, without the final chunk or byte that marks the end."""
    stats = json.dumps(dict.fromkeys(("ready", "scheduled", "leased", "dead", "archived"), 1)).encode()
    ok = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                link, _ = listener.accept()
                with link:
                    if b"/stats" in link.recv(1 << 16):
                        link.sendall(ok + b"content-length: %d\r\n\r\n%b" % (len(stats), stats))
                    else:
                        link.sendall(ok + framing)

        threading.Thread(target=serve, daemon=True).start()
        file = tmp_path / "export.ndjson"
        result = penstock(
            "export", "--queue", "q", "--file", str(file), "--url", f"http://127.0.0.1:{listener.getsockname()[1]}"
        )
    assert result.code != 0
    assert "closed the connection" in result.err
    assert not list(tmp_path.iterdir())
