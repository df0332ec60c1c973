"""`penstock pipeline sql`"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.common import WRONG, CommandFailed
from penstock.cli.output import Output, note, write
from penstock.cli.pipeline import PipelinePaths, SparkOptions, asking, on_spark, session
from penstock.cli.pipeline_progress import Display

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN = 1_000


@click.command("sql")
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option("--parquet", type=click.Path(dir_okay=False, path_type=Path), help="Write a Parquet file.")
@on_spark
def sql(
    paths: PipelinePaths, query: str, as_csv: bool, parquet: Path | None, as_json: bool, spark_options: SparkOptions
) -> None:
    """Query the lake and the live store with SQL.

    Tables: bronze.events, silver.messages, gold.queues, gold.queue_minutes, gold.errors, live.queues, live.messages,
    and model.NAME for each model.
    In JSON and CSV, bytes are base64; use cast(body AS string) for text.

    JSON: one object per row, a line each
    """
    if as_csv + as_json + (parquet is not None) > 1:
        raise CommandFailed("--json, --csv and --parquet exclude each other", WRONG)
    with Display("sql") as display:
        lake = paths.lake()
        with session(paths, display, spark_options, brief=True) as spark:
            from penstock.pipeline.lake.tables import LIVE
            from penstock.pipeline.models.catalog import tables_of
            from penstock.pipeline.sql import answer, is_question, tables_for

            with asking():
                if not is_question(spark, query):
                    raise CommandFailed("only SELECT, SHOW and DESCRIBE statements are allowed", WRONG)
            with tables_for(query, spark, lake, paths.live()) as folder:
                display.doing("running the query")
                known = (*(table.table.name for table in tables_of(lake)), *LIVE)
                with asking(hint=f"tables: {', '.join(known)}"):
                    frame = spark.sql(query)
                    frame = frame.toDF(*_unique_names(frame.columns))
                    whole = as_csv or as_json or parquet is not None
                    found = answer(frame, folder) if whole else frame.limit(ROWS_SHOWN + 1).toArrow().to_reader()
                display.clear()
                _show(found, as_csv, as_json, parquet)  # Before Spark stops, which takes a while.


def _show(found: pa.RecordBatchReader, as_csv: bool, as_json: bool, parquet: Path | None) -> None:
    if parquet is not None:
        _write_parquet(found, parquet)
    elif as_csv:
        _write_csv(found)
    elif as_json:
        for batch in found:
            write(b"".join(msgspec.json.encode(row) + b"\n" for row in batch.to_pylist(maps_as_pydicts="lossy")))
    else:
        rows = found.read_all().to_pylist(maps_as_pydicts="lossy")
        cells = [[_plain(value) for value in row.values()] for row in rows[:ROWS_SHOWN]]
        Output(False).table(found.schema.names, cells, empty="no rows")
        if len(rows) > ROWS_SHOWN:
            note(f"showing the first {ROWS_SHOWN} rows; use --json, --csv or --parquet for all")


def _write_parquet(found: pa.RecordBatchReader, file: Path) -> None:
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(file, found.schema) as writer:
        for batch in found:
            writer.write_batch(batch)
            rows += batch.num_rows
    note(f"wrote {rows} rows to {file}")


def _write_csv(found: pa.RecordBatchReader) -> None:
    import io

    from pyarrow import Table, csv

    def add(rows: Table, *, heading: bool) -> None:
        sink = io.BytesIO()
        csv.write_csv(_flat(rows), sink, csv.WriteOptions(include_header=heading))
        write(sink.getvalue())

    add(found.schema.empty_table(), heading=True)
    for batch in found:
        add(Table.from_batches([batch]), heading=False)


def _flat(found: pa.Table) -> pa.Table:
    """Convert lists, structs, maps, bytes and durations, which CSV does not have, to text as in JSON."""
    from pyarrow import array, string, types

    for number, field in enumerate(found.schema):
        if types.is_nested(field.type) or types.is_binary(field.type) or types.is_duration(field.type):
            values = found.column(number).to_pylist(maps_as_pydicts="lossy")
            texts = [None if value is None else _text(value) for value in values]
            found = found.set_column(number, field.name, array(texts, string()))
    return found


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else msgspec.to_builtins(value)


def _unique_names(names: Sequence[str]) -> list[str]:
    """Make column names unique: the second `id` becomes `id_2`."""
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" for number in count(2))
        found.append(name if name not in found else next(each for each in free if each not in (*names, *found)))
    return found


def _plain(value: object) -> object:
    """Format a value for people: bytes as text if they are UTF-8, nested values as JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "base64:" + b64encode(value).decode()
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).replace("+00:00", "Z")
