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
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, with a heading.")
@click.option("--parquet", type=click.Path(dir_okay=False, path_type=Path), help="Into this file.")
@on_spark
def sql(
    places: PipelinePaths, query: str, as_csv: bool, parquet: Path | None, as_json: bool, spark_options: SparkOptions
) -> None:
    """Ask bronze.events, silver.messages, gold.queues, gold.queue_minutes, gold.errors, live.queues and live.messages.

    In JSON and CSV bytes are base64; cast(body AS string) makes text of them.

    JSON: one object per row, a line each
    """
    if as_csv + as_json + (parquet is not None) > 1:
        raise CommandFailed("--json, --csv and --parquet exclude each other", WRONG)
    with Display("sql") as display:
        lake = places.lake()
        with session(places, display, spark_options, brief=True) as spark:
            from penstock.pipeline.lake.tables import LIVE, TABLES
            from penstock.pipeline.sql import answer, is_question, tables_for

            with asking():
                if not is_question(spark, query):
                    raise CommandFailed("only SELECT, SHOW and DESCRIBE statements are allowed", WRONG)
            with tables_for(query, spark, lake, places.live()) as folder:
                display.doing("asking")
                with asking(hint=f"there are {', '.join((*TABLES, *LIVE))}"):
                    frame = spark.sql(query)
                    frame = frame.toDF(*_told_apart(frame.columns))
                    whole = as_csv or as_json or parquet is not None
                    found = answer(frame, folder) if whole else frame.limit(ROWS_SHOWN + 1).toArrow().to_reader()
                display.clear()
                _show(found, as_csv, as_json, parquet)  # Spark takes its time to stop.


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
            note(f"only the first {ROWS_SHOWN} rows are shown; --json, --csv and --parquet give all")


def _write_parquet(found: pa.RecordBatchReader, file: Path) -> None:
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(file, found.schema) as writer:
        for batch in found:
            writer.write_batch(batch)
            rows += batch.num_rows
    note(f"{rows} rows in {file}")


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
    """What CSV has not, as in JSON: lists, structs and maps, bytes, spans of time."""
    from pyarrow import array, string, types

    for number, field in enumerate(found.schema):
        if types.is_nested(field.type) or types.is_binary(field.type) or types.is_duration(field.type):
            values = found.column(number).to_pylist(maps_as_pydicts="lossy")
            texts = [None if value is None else _text(value) for value in values]
            found = found.set_column(number, field.name, array(texts, string()))
    return found


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else msgspec.to_builtins(value)


def _told_apart(names: Sequence[str]) -> list[str]:
    """A query may have two columns of one name: the second `id` is `id_2`."""
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" for number in count(2))
        found.append(name if name not in found else next(each for each in free if each not in (*names, *found)))
    return found


def _plain(value: object) -> object:
    """As a person reads it: bytes as text, if they are, and what has parts as JSON."""
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
