"""`penstock pipeline` as typed: create, query, report on, compact and replay a lake."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli import pipeline_replay, pipeline_sql
from penstock.cli.pipeline_sql import _show, _unique_names
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import QUEUE_ERRORS
from penstock.pipeline.report.report import report
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.integration.serving import running
from tests.integration.test_cli_behaviour import on_a_terminal
from tests.spark.support import PostgresWork, Work, rows_of

pytestmark = pytest.mark.spark


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment())


def pipeline(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, "--data", str(data))


def told(data: Path, *arguments: str) -> list[Any]:
    return _lines(pipeline(data, *arguments, "--json"))


def _lines(ran: subprocess.CompletedProcess[str]) -> list[Any]:
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    work = Work(tmp_path_factory.mktemp("filled") / "data")
    work.some(200)
    work.make("news", max_attempts=1)
    work.bury("lost", queue="news", error="no such user")
    ran = pipeline(work.data, "run", "--once", "--json", "--master", "local[1]")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("Spark log: ")
    assert len(ran.stderr.splitlines()) == 1
    assert json.loads(ran.stdout)["events"] > 200
    yield work
    work.close_all()


def test_every_table_has_come_to_the_journals_end_and_stays_so_when_compacted(filled: Work) -> None:
    [before] = told(filled.data, "status")
    assert [row["lag"] for row in before] == [0, 0, 0, 0, 0]
    told(filled.data, "compact", "--vacuum-hours", "0")
    [after] = told(filled.data, "status")
    assert [row["rows"] for row in after] == [row["rows"] for row in before]


def test_sql_joins_the_lake_with_the_live_store(filled: Work) -> None:
    columns = "queue, ready, pushed, current_timezone() AS zone"
    query = f"SELECT {columns} FROM gold.queues JOIN live.queues USING (queue) ORDER BY queue"
    zone = ("--conf", "spark.sql.session.timeZone=Asia/Tokyo")
    rows = told(filled.data, "sql", query, "--master", "local[1]", *zone)
    assert {row["zone"] for row in rows} == {"Asia/Tokyo"}
    expected = [info for info in filled.store.list_queues() if info.totals.pushed]
    assert [(row["queue"], row["ready"]) for row in rows] == [(info.name, info.ready) for info in expected]


@pytest.mark.parametrize(
    ("given", "hint"),
    [("driver.cores=1", "expected spark.KEY=VALUE"), ("spark.x", "expected"), ("spark.master=yarn", "--master")],
)
def test_a_setting_that_is_none_of_sparks_is_refused(given: str, hint: str) -> None:
    ran = CliRunner().invoke(pipeline_sql.sql, ["SELECT 1", "--conf", given])
    assert ran.exit_code == 2
    assert hint in ran.output


def test_on_a_terminal_a_bar_moves_and_the_log_is_named(filled: Work) -> None:
    where = ("--data", str(filled.data), "--master", "local[1]")
    code, shown = on_a_terminal("pipeline", "sql", "SELECT 'so' AS it", *where)
    assert code == 0
    assert shown.index("spark.log") < shown.index("starting Spark") < shown.index("──")
    assert "WARN" not in shown


def test_a_report_needs_nothing_from_outside(filled: Work, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told(filled.data, "report", "--file", str(page))
    assert "<svg" in page.read_text()
    assert "http" not in page.read_text()


def test_a_report_tells_the_errors_of_the_hour_in_which_it_begins(filled: Work) -> None:
    lake = Lake(filled.data / "lake")
    [error] = [row for row in rows_of(lake, QUEUE_ERRORS) if row["queue"] == "news"]
    start = error["last_at"].replace(second=0, microsecond=0)
    assert start > error["hour"]
    assert "no such user" in report(lake, start, None)


def test_dead_letters_are_replayed_once(filled: Work) -> None:
    where = "queue = 'news' AND outcome = 'dead'"
    for pushed in (1, 0):
        [answer] = told(filled.data, "replay", "--where", where, "--to", "again", "--master", "local[1]")
        assert (answer["matched"], answer["pushed"]) == (1, pushed)
    assert [message.payload for message in filled.lease("again", 10)] == [b"lost"]


def test_a_lake_that_is_not_there_is_named(work: Work) -> None:
    asked = pipeline(work.data, "status")
    assert asked.returncode == 1
    assert "there is no lake" in asked.stderr


def test_a_folder_without_queues_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ran = pipeline(tmp_path, "run")
    assert ran.returncode == 1
    assert "does not exist" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_lake_is_filled_from_a_database_with_no_server(tmp_path: Path) -> None:
    work, lake = PostgresWork(), str(tmp_path / "lake")
    try:
        work.push("a", "b")
        where = ("--store", work.where, "--lake", lake)
        [ran] = _lines(typed("run", "--once", "--json", "--master", "local[1]", *where))
        assert (ran["events"], ran["lag"]) == (3, 0)
        work.push("c")
        work.drained()
        [tables] = _lines(typed("status", "--json", *where))
        assert [row["lag"] for row in tables] == [1, 1, 1, 1, 1]
    finally:
        work.close_all()


def test_a_server_is_asked_how_far_its_journal_goes(filled: Work) -> None:
    [before] = told(filled.data, "status")
    with running(filled.data, auth_token="secret") as server:
        where = ("--url", f"http://127.0.0.1:{server.port}", "--token", "secret", "--lake", str(filled.data / "lake"))
        [tables] = _lines(typed("status", "--json", *where))
    assert [row["position"] for row in tables] == [row["position"] for row in before]
    [end] = {row["position"] + row["lag"] for row in tables}
    assert before[0]["position"] <= end <= filled.journal_bounds()[1]


def test_queues_are_in_one_place() -> None:
    ran = typed("status", "--data", "here", "--store", "postgresql://there/queues")
    assert ran.returncode == 2
    assert "give a database or a file" in ran.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_two_columns_of_one_name_get_unique_names(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    found = pa.Table.from_arrays([pa.array([number]) for number in range(4)], names=["id", "id", "id_2", "id"])
    _show(found.rename_columns(_unique_names(found.column_names)).to_reader(), False, as_json, None)
    shown = capsys.readouterr().out
    if as_json:
        assert json.loads(shown) == {"id": 0, "id_3": 1, "id_2": 2, "id_4": 3}
    else:
        assert shown.split() == ["id", "id_3", "id_2", "id_4", "0", "1", "2", "3"]


def test_the_same_files_for_another_place_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    monkeypatch.setattr(pipeline_replay, "_push", lambda places, rows, to, run, *rest, **more: runs.append(run))

    def load(files: str, *where: str) -> str:
        done = CliRunner().invoke(pipeline_replay.load, [files, "--to", "mail", *where], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return runs[-1]

    monkeypatch.chdir(tmp_path)
    here = load("a.csv", "--url", "http://one:8888")
    assert load(str(tmp_path / "a.csv"), "--url", "http://one:8888/") == here
    assert load("a.csv", "--url", "http://two:8888") != here
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert load("a.csv", "--url", "http://one:8888") != here


def test_lists_and_structs_are_json_in_a_csv(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    _show(pa.table({"id": [1, 2], "errors": [[{"text": "no"}], None]}).to_reader(), True, False, None)
    assert capsysbinary.readouterr().out == b'"id","errors"\n1,"[{""text"":""no""}]"\n2,\n'


def test_a_folder_may_have_any_name_in_any_locale(tmp_path: Path) -> None:
    work = Work(tmp_path / "größe [1] {a,b}")
    work.push("a", "b")
    work.close_all()
    for arguments in (("run", "--once"), ("sql", "SELECT count(*) AS rows FROM bronze.events")):
        command = [PENSTOCK, "pipeline", *arguments, "--data", str(work.data), "--master", "local[1]", "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, env=clean_environment(LC_ALL="C"))
        assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"rows": 3}
    assert [path.name for path in tmp_path.iterdir()] == [work.data.name]
