"""`penstock pipeline sql`"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.output import Output, note, write
from penstock.cli.pipeline import Places, asking, on_spark, session
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
    places: Places, query: str, as_csv: bool, parquet: Path | None, as_json: bool, master: str, memory: str
) -> None:
    """Ask bronze.events, silver.messages, gold.queues, gold.queue_minutes, gold.errors, live.queues and live.messages.

    JSON: one object per row, a line each
    """
    lake = places.lake()
    with Display("sql") as display, session(places, display, master, memory, brief=True) as spark:
        from penstock.pipeline.sql import tables_for

        with tables_for(query, spark, lake, places.live()):
            display.doing("asking")
            with asking():
                frame = spark.sql(query)
                whole = as_csv or as_json or parquet is not None
                found = (frame if whole else frame.limit(ROWS_SHOWN + 1)).toArrow()
        display.clear()
        _show(found, as_csv, as_json, parquet)  # Spark takes its time to stop.


def _show(found: pa.Table, as_csv: bool, as_json: bool, parquet: Path | None) -> None:
    found = found.rename_columns(_told_apart(found.column_names))
    if parquet is not None:
        import pyarrow.parquet as pq

        pq.write_table(found, parquet)
        note(f"{found.num_rows} rows in {parquet}")
    elif as_csv:
        import io

        from pyarrow import csv

        sink = io.BytesIO()
        csv.write_csv(_flat(found), sink)
        write(sink.getvalue())
    elif as_json:
        for batch in found.to_batches(max_chunksize=10_000):
            write(b"".join(msgspec.json.encode(row) + b"\n" for row in batch.to_pylist()))
    else:
        shown = found.slice(0, ROWS_SHOWN)
        rows = [[_plain(value) for value in row.values()] for row in shown.to_pylist()]
        Output(False).table(found.column_names, rows, empty="no rows")
        if found.num_rows > ROWS_SHOWN:
            note(f"only the first {ROWS_SHOWN} rows are shown; --json, --csv and --parquet give all")


def _flat(found: pa.Table) -> pa.Table:
    """Lists, structs and maps as JSON: CSV has none."""
    from pyarrow import array, string, types

    for number, field in enumerate(found.schema):
        if types.is_nested(field.type):
            values = found.column(number).to_pylist()
            texts = [None if value is None else msgspec.json.encode(value).decode() for value in values]
            found = found.set_column(number, field.name, array(texts, string()))
    return found


def _told_apart(names: Sequence[str]) -> list[str]:
    """A query may have two columns of one name: the second `id` is `id_2`."""
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" for number in count(2))
        found.append(name if name not in found else next(each for each in free if each not in (*names, *found)))
    return found


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
