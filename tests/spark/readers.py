"""Reads a lake's tables with three readers, and compares bronze with the journal row by row."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
from pyarrow.fs import LocalFileSystem, copy_files

from penstock.journal.events import Event, EventFlag
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import Folder
from penstock.pipeline.lake.tables import BRONZE, TABLES, Table
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.support import arrow_of

CHUNK_ROWS = 50_000
Digest = tuple[str, int, str]
"""A table's name, its rows, and a sum over all of them that does not depend on their order."""


def digests_by_spark(*flags: str) -> list[Digest]:
    """Through `pipeline sql`."""
    query = " UNION ALL ".join(_query(table, table.name, _SPARK) for table in TABLES.values())
    command = [PENSTOCK, "pipeline", "sql", f"{query} ORDER BY name", "--json", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert ran.returncode == 0, ran.stderr
    return [(row["name"], row["rows"], row["digest"]) for row in map(json.loads, ran.stdout.splitlines())]


def digests_by_delta_rs(lake: Lake) -> list[Digest]:
    return [_digest(table, arrow_of(lake, table)) for table in _sorted()]


def digests_by_duckdb(lake: Lake) -> list[Digest]:
    """From the files alone: DuckDB itself finds in the table's log which of them count."""
    found = []
    for table in _sorted():
        with _on_this_machine(lake[table].folder) as folder, duckdb.connect() as db:
            # Without deletion vectors, of which there are none here, that is all there is to reading Delta.
            paths = db.execute(
                """WITH actions AS (SELECT filename AS version, add.path AS added, remove.path AS removed
                    FROM read_json(?, filename = true, format = 'newline_delimited', columns = {
                      add: 'STRUCT(path VARCHAR)', remove: 'STRUCT(path VARCHAR)'}))
                  SELECT added FROM actions WHERE added IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM actions AS later WHERE later.removed = actions.added)""",
                [str(folder / "_delta_log" / "*.json")],
            ).fetchall()
            files = [str(folder / path) for (path,) in paths]
            source = "read_parquet($files, union_by_name = true)" if files else "nothing"
            if not files:
                db.register("nothing", table.schema.empty_table())
            answer = db.execute(_query(table, source, _DUCKDB), {"files": files} if files else {}).fetchone()
        assert answer is not None
        found.append(answer)
    return found


@contextmanager
def _on_this_machine(folder: Folder) -> Iterator[Path]:
    """The folder itself, or a copy of all that it holds: DuckDB's own reader of S3 is an extension from elsewhere."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        copy_files("", copy, source_filesystem=folder.files(), destination_filesystem=LocalFileSystem())
        yield Path(copy)


def _sorted() -> list[Table]:
    return sorted(TABLES.values(), key=lambda table: table.name)


def _digest(table: Table, rows: pa.Table) -> Digest:
    with duckdb.connect() as db:
        db.register("rows_read", rows)
        found = db.execute(_query(table, "rows_read", _DUCKDB)).fetchone()
    assert found is not None
    return found


_SPARK = {
    "time": "unix_micros({})",
    "errors": "array_join(transform({}, e -> concat_ws(':', e.attempt, unix_micros(e.at), e.error)), ',')",
    "number": "CAST(conv({}, 16, 10) AS BIGINT)",
    "text": "STRING",
}
_DUCKDB = {
    "time": "epoch_us({})",
    "errors": "array_to_string(list_transform({}, lambda e: concat_ws(':', e.attempt, epoch_us(e.at), e.error)), ',')",
    "number": "('0x' || {})::BIGINT",
    "text": "VARCHAR",
}


def _query(table: Table, source: str, words: dict[str, str]) -> str:
    quote = "`" if words is _SPARK else '"'
    columns = []
    for field in table.schema:
        column = f"{quote}{field.name}{quote}"
        if pa.types.is_timestamp(field.type):
            column = words["time"].format(column)
        elif pa.types.is_binary(field.type):
            column = f"hex({column})"
        elif pa.types.is_list(field.type):
            column = words["errors"].format(column)
        columns.append(f"coalesce(CAST({column} AS {words['text']}), '~')")
    number = words["number"].format("substr(md5(concat_ws('|', " + ", ".join(columns) + ")), 1, 15)")
    total = f"CAST(coalesce(sum(CAST({number} AS DECIMAL(38, 0))), 0) AS {words['text']})"
    return f"SELECT '{table.name}' AS name, count(*) AS rows, {total} AS digest FROM {source}"


def check_bronze(lake: Lake, events: Iterator[Event]) -> int:
    """Every column of every row is what the plain decoder finds in the journal; how many rows there are."""
    rows = arrow_of(lake, BRONZE).sort_by([(key, "ascending") for key in BRONZE.keys])
    at = 0
    while chunk := list(islice(events, CHUNK_ROWS)):
        found = list(_comparable(rows.slice(at, len(chunk))))
        expected = [_row(event) for event in chunk]
        assert found == expected, next((a, b) for a, b in zip(found, expected, strict=False) if a != b)
        at += len(chunk)
    assert at == rows.num_rows
    return at


def _comparable(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for field in rows.schema:
        if pa.types.is_timestamp(field.type):
            place = rows.schema.get_field_index(field.name)
            rows = rows.set_column(place, field.name, rows[field.name].cast(pa.int64()))
    for row in rows.to_pylist():
        yield {**row, "details": msgspec.json.decode(row["details"]) if row["details"] else {}}


def _row(event: Event) -> dict[str, Any]:
    row = {name: getattr(event, name) for name in BRONZE.schema.names}
    for name in ("at", "pushed_at", "first_leased_at", "leased_at", "until"):
        row[name] = row[name] and row[name] * 1000
    return {
        **row,
        "marks": sum(int(EventFlag[mark.upper()]) for mark in event.marks),
        "content": event.content and str(event.content),
    }
