"""Records that were cut from a log are reported by the doctor, /readyz, /metrics and on stderr."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import CatchUpJournal, Push
from penstock.core.model import PushItem, QueueOptions
from penstock.journal.drainer import drain_once, journal_folder
from penstock.log.reader import LogReader
from penstock.log.segment import INDEX
from penstock.log.segment_header import HEAD_BYTES
from penstock.log.streams import FileStreams, streams_beside
from penstock.log.writer import Log
from penstock.ops.doctor import examine
from penstock.server.telemetry import Metrics
from penstock.store.sqlite import SqliteStore
from tests.integration.command_line import penstock as command
from tests.integration.serving import process
from tests.unit.log.support import read_all

COUNT = 30


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file with a journal of some records, and a stream."""
    path = tmp_path / "q.db"
    with closing(SqliteStore(path, durability="relaxed", journal=True)) as store:
        for number in range(COUNT):
            store.apply([Push(queue="q", messages=[PushItem(payload=b"%d" % number)], create=QueueOptions())])
            store.apply([CatchUpJournal()])
        drain_once(store, store.path)
    with closing(FileStreams(streams_beside(path))) as streams:
        streams.create("s")
        for number in range(COUNT):
            streams.append("s", [b"%d" % number * 20])
    return path


def corrupt_index_entry(folder: Path) -> None:
    [index] = folder.glob(f"*{INDEX}")
    data = bytearray(index.read_bytes())
    data[64 + 4 * 5 + 3] |= 0x80
    index.write_bytes(data)


def damage(folder: Path) -> None:
    """Damage a record, its index and the manifests, so that the offsets of later records are unknown."""
    [log] = folder.glob("*.log")
    data = bytearray(log.read_bytes())
    data[HEAD_BYTES : HEAD_BYTES + 1_000] = bytes(1_000)
    log.write_bytes(data)
    for name in (log.with_suffix(INDEX).name, "manifest", "manifest.copy"):
        (folder / name).unlink(missing_ok=True)


def cut(folder: Path) -> None:
    damage(folder)
    Log(folder).close()
    assert list(folder.glob("*.cut"))


@pytest.mark.parametrize("which", ["journal", "stream"])
def test_a_bad_index_entry_costs_no_record(database: Path, which: str) -> None:
    folder = journal_folder(database) if which == "journal" else streams_beside(database) / "flat" / "s"
    with LogReader(folder) as log:
        before, _ = read_all(log)
    corrupt_index_entry(folder)
    if which == "stream":
        assert command("stream", "show", "s", "--db", str(database)).code == 0
        assert command("stream", "check", "s", "--db", str(database)).code == 0
    else:
        shown = command("journal", "show", "--db", str(database), "--json")
        assert (shown.code, shown.json["next"]) == (0, len(before))
    with LogReader(folder) as log:
        assert read_all(log) == (before, [])
    assert not list(folder.glob("*.cut"))


@pytest.mark.parametrize("which", ["journal", "stream"])
def test_a_cut_is_reported_by_doctor_readyz_and_metrics_until_it_is_repaired(
    database: Path, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [each.level for each in examine(database) if each.what == "logs"] == ["ok"]
    folder = journal_folder(database) if which == "journal" else streams_beside(database) / "flat" / "s"
    cut(folder)
    assert "whole records of unknown offset were cut off" in caplog.text
    [problem] = [each for each in examine(database) if each.what == "log"]
    assert (problem.level, ".cut" in problem.detail) == ("problem", True)
    assert problem.advice is not None
    assert f"penstock {which} repair" in problem.advice
    with closing(SqliteStore(database)) as store:
        metrics = Metrics(Broker(store))
        assert b"penstock_log_cut_files 1.0" in metrics.text()
        assert b'penstock_log_troubles_total{trouble="cut"}' in metrics.text()
    if which == "stream":
        assert command("stream", "repair", "s", "--yes", "--db", str(database)).code in (0, 3)
        assert [each.level for each in examine(database) if each.what == "logs"] == ["ok"]
    else:
        repaired = command("journal", "repair", "--yes", "--db", str(database), "--json")
        assert repaired.code in (1, 3), repaired.err
        assert "stay in this file" in str(repaired.json["findings"])


def test_a_server_that_cuts_its_journal_reports_it_on_stderr_and_at_readyz(database: Path, tmp_path: Path) -> None:
    with process(tmp_path, "--db", str(database)) as server, server.client() as client:
        assert client.get("/readyz").json["checks"]["logs"] == "ok"
        assert server.terminate() == 0
    damage(journal_folder(database))
    with process(tmp_path, "--db", str(database)) as server, server.client() as client:
        while "whole records of unknown offset were cut off" not in server.text():
            time.sleep(0.02)
        found = client.get("/readyz")
        assert (found.status, found.json["ready"]) == (200, True), "the queue works without those records"
        assert found.json["checks"]["logs"] == "1 files of cut records; `penstock doctor` names them"
        assert b"penstock_log_cut_files 1.0" in client.get("/metrics").body
