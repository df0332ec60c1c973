"""`penstock pipeline sql`: the output formats, and the errors of invalid queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from penstock.cli import pipeline_sql
from penstock.cli.common import CommandFailed
from penstock.cli.pipeline import asking
from penstock.cli.pipeline_sql import _show
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.run import Pipeline
from penstock.pipeline.sql import ROWS_HELD, answer
from tests.spark.support import Work

pytestmark = pytest.mark.spark

VALUES = """SELECT X'ff00' AS raw, cast('text' AS binary) AS text, 9223372036854775807L AS big, NULL AS nothing,
    timestamp '9999-12-31 23:59:59.123456' AS at, cast(1.10 AS decimal(38, 2)) AS exact, map('k', X'ff') AS pairs,
    named_struct('at', timestamp '2026-01-01 00:00:00', 'none', NULL) AS parts, interval '1' day AS span"""


def test_every_value_is_exact_in_json(spark: Any, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    _show(answer(spark.sql(VALUES), tmp_path), False, True, None)
    assert json.loads(capsysbinary.readouterr().out) == {
        "raw": "/wA=",
        "text": "dGV4dA==",
        "big": 9223372036854775807,
        "nothing": None,
        "at": "9999-12-31T23:59:59.123456Z",
        "exact": "1.10",
        "pairs": {"k": "/w=="},
        "parts": {"at": "2026-01-01T00:00:00Z", "none": None},
        "span": "P1D",
    }


def test_a_csv_tells_bytes_and_parts_as_json_does(
    spark: Any, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    _show(answer(spark.sql(VALUES), tmp_path), True, False, None)
    heading, row = capsysbinary.readouterr().out.decode().splitlines()
    assert heading.startswith('"raw","text","big","nothing","at"')
    assert row.startswith('"/wA=","dGV4dA==",9223372036854775807,,9999-12-31 23:59:59.123456Z,1.10,"{""k"":""/w==""}"')
    assert row.endswith('"P1D"')


def test_a_table_shows_bytes_that_are_text_as_text(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _show(spark.sql("SELECT cast('hallo' AS binary) AS a, X'ff' AS b, array(1) AS c").toArrow().to_reader(), *NONE)
    assert capsys.readouterr().out.split() == ["a", "b", "c", "hallo", "base64:/w==", "[1]"]


NONE = (False, False, None)


def test_a_large_answer_is_whole_and_in_order_and_of_the_same_types(spark: Any, tmp_path: Path) -> None:
    columns = "timestamp_micros(id) AS at, interval '1' day AS span, map('k', X'ff') AS pairs, array(NULL, id) AS ids"
    few = answer(spark.sql(f"SELECT id, {columns} FROM range(10) ORDER BY id DESC"), tmp_path)
    many = answer(spark.sql(f"SELECT id, {columns} FROM range({3 * ROWS_HELD}) ORDER BY id DESC"), tmp_path)
    assert (tmp_path / "answer").exists()
    assert many.schema == few.schema
    found = many.read_all()
    assert found["id"].to_pylist() == list(range(3 * ROWS_HELD))[::-1]
    assert found.slice(found.num_rows - 10).to_pylist() == few.read_all().to_pylist()


def test_an_answer_without_rows_has_its_heading(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    _show(pa.schema([("id", pa.int64())]).empty_table().to_reader(), True, False, None)
    assert capsysbinary.readouterr().out == b'"id"\n'


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELEC 1", "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, position 0)"),
        ("SELECT * FROM queues", "`queues` cannot be found. Verify the spelling and correctness of the schema and "),
        ("SELECT nope FROM range(1)", "Did you mean one of the following? [`id`]. (line 1, position 7)"),
        ("SELECT 1/0 AS x", "[DIVIDE_BY_ZERO] Division by zero."),
    ],
)
def test_a_mistake_is_told_in_one_line_without_a_plan(spark: Any, query: str, told: str) -> None:
    with pytest.raises(CommandFailed) as failed, asking(hint="there is gold.queues"):
        spark.sql(query).collect()
    assert told in failed.value.message
    assert "\n" not in failed.value.message
    assert ("there is gold.queues" in failed.value.message) == ("cannot be found" in told)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE gold.queues",
        " -- so\n/* and */ insert into x values (1)",
        "FROM range(3) INSERT OVERWRITE DIRECTORY '{}' USING parquet SELECT *",
        "EXECUTE IMMEDIATE 'CREATE TABLE t USING parquet LOCATION \"{}\" AS SELECT 1 AS n'",
        "EXPLAIN EXECUTE IMMEDIATE 'CREATE TABLE t USING parquet LOCATION \"{}\" AS SELECT 1 AS n'",
        "WITH t AS (SELECT 1 AS n) INSERT OVERWRITE DIRECTORY '{}' USING parquet SELECT * FROM t",
        "BEGIN INSERT OVERWRITE DIRECTORY '{}' USING parquet SELECT 1 AS n; END",
    ],
)
def test_a_statement_that_changes_something_is_refused(
    command: Callable[..., Result], lake: Lake, tmp_path: Path, query: str
) -> None:
    lake.create()
    target = tmp_path / "written"
    ran = command("sql", query.format(target), "--lake", str(lake.folder))
    assert ran.exit_code == 2
    assert "only SELECT" in ran.output
    assert not target.exists()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT 1 AS one;\n", '{"one":1}'),
        ("WITH t AS (SELECT 'INSERT' AS drop) SELECT * FROM t", '{"drop":"INSERT"}'),
        ("FROM VALUES (3) AS t(n) SELECT n", '{"n":3}'),
        ("DESCRIBE live.queues", '{"col_name":"queue","data_type":"string","comment":null}'),
    ],
)
def test_every_form_of_a_question_is_answered(
    command: Callable[..., Result], lake: Lake, query: str, told: str
) -> None:
    lake.create()
    ran = command("sql", query, "--json", "--lake", str(lake.folder))
    assert (ran.exit_code, ran.output.splitlines()[0]) == (0, told)


def test_a_file_missing_from_the_lake_is_an_error_that_names_it(
    spark: Any, command: Callable[..., Result], work: Work, lake: Lake
) -> None:
    work.push("a")
    with Pipeline(spark, work.drained(), lake) as pipeline:
        list(pipeline.steps())
    [file] = lake[BRONZE].files()
    Path(file).unlink()
    for arguments in (
        ("sql", "SELECT count(*) FROM bronze.events"),
        ("verify",),
        ("status",),
        ("replay", "--where", "true", "--to", "again"),
    ):
        ran = command(*arguments, "--data", str(work.data))
        assert ran.exit_code == 1
        assert f"bronze.events is missing the file {file}" in ran.output


def test_an_answer_has_one_form() -> None:
    ran = CliRunner().invoke(pipeline_sql.sql, ["SELECT 1", "--csv", "--json"])
    assert ran.exit_code == 2
    assert "exclude each other" in ran.output
