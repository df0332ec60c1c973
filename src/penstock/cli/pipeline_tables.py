"""`penstock pipeline status`, `compact`, `verify` and `report`"""

from __future__ import annotations

import re
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from penstock.cli.common import CommandFailed, QueueOption
from penstock.cli.output import Output, when, write
from penstock.cli.pipeline import PipelinePaths, SparkOptions, on_lake, on_spark, session
from penstock.cli.pipeline_progress import Display

MINUTE = timedelta(minutes=1)


class Time(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        ago = re.fullmatch(r"(\d{1,5})(min|h|d)", value)
        if ago:
            return datetime.now(UTC) - int(ago[1]) * {"min": MINUTE, "h": 60 * MINUTE, "d": 1_440 * MINUTE}[ago[2]]
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-01-31, 2026-01-31T12:00 or 24h (ago)", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@click.command("status")
@on_lake
def status(paths: PipelinePaths, as_json: bool) -> None:
    """Show the size of each table, its lag behind the journal, and the expectations of models. Needs no Java.

    JSON: [{"table", "rows", "files", "bytes", "version", "position", "lag", "newest_ms", "age_ms", "expectations":
    [{"expectation", "action", "passed", "failed"}]}]
    """
    from penstock.pipeline.lake.lake import app_of
    from penstock.pipeline.models.catalog import tables_of
    from penstock.pipeline.models.results import load

    out, lake = Output(as_json), paths.lake()
    with closing(paths.journal.open()) as log:
        app, end = app_of(log.uid), log.next_offset
    now = time.time() * 1000
    rows: list[dict[str, Any]] = []
    results = load(lake)
    for table in tables_of(lake):
        size = table.size(app)
        newest = table.greatest_of(next(iter(reversed(table.table.ranged)), None))
        newest_ms = None if newest is None else int(newest.timestamp() * 1000)
        rows.append(
            {
                **msgspec.structs.asdict(size),
                "lag": None if size.position is None else end - size.position,
                "newest_ms": newest_ms,
                "age_ms": None if newest_ms is None else round(now - newest_ms),
                "expectations": [
                    {name: each[name] for name in ("expectation", "action", "passed", "failed")}
                    for each in results
                    if f"model.{each['model']}" == table.table.name
                ],
            }
        )
    headings = ("table", "rows", "files", "bytes", "lag", "newest")
    cells = [[row[name] for name in headings[:-1]] + [when(row["newest_ms"])] for row in rows]

    def show() -> None:
        out.table(headings, cells, empty="no tables")
        if results:
            checks = [
                (each["model"], each["expectation"], each["action"], "passed" if each["passed"] else each["failed"])
                for each in results
            ]
            out.table(("model", "expectation", "action", "failed rows"), checks, empty="")

    out.show(rows, show)


@click.command("tables")
@click.option("--ddl", is_flag=True, help="Print statements that register the tables in a catalog.")
@click.option("--format", "dialect", type=click.Choice(["spark", "duckdb"]), default="spark", show_default=True)
@on_lake
def tables(paths: PipelinePaths, ddl: bool, dialect: str, as_json: bool) -> None:
    """List the tables with their locations, or print statements that register them. Needs no Java.

    JSON: [{"table", "location", "about"}]
    """
    from penstock.pipeline.lake.ddl import duckdb_statements, spark_statements
    from penstock.pipeline.models.catalog import tables_of

    out, found = Output(as_json), tables_of(paths.lake())
    if ddl:
        statements = spark_statements(found) if dialect == "spark" else duckdb_statements(found)
        write("".join(f"{statement}\n" for statement in statements).encode())
        return
    rows = [{"table": each.table.name, "location": str(each.folder), "about": each.table.about} for each in found]
    out.show(rows, lambda: out.table(("table", "location"), [list(row.values())[:2] for row in rows], empty=""))


@click.command("compact")
@click.option("--vacuum-hours", type=click.IntRange(0, 24 * 365), default=7 * 24, show_default=True)
@on_lake
def compact(paths: PipelinePaths, vacuum_hours: int, as_json: bool) -> None:
    """Merge small files, apply retention, and remove files unused for --vacuum-hours. Needs no Java.

    JSON: [{"table", "removed", "added", "vacuumed"}]
    """
    from penstock.pipeline.lake.lake import app_of
    from penstock.pipeline.models.catalog import tables_of
    from penstock.pipeline.retention import apply_retention, stored_retention

    out = Output(as_json)
    rows = []
    with Display("compact") as display:
        lake = paths.lake()
        lock = lake.lock()
        try:
            display.doing("retention")
            if stored_retention(lake):
                with closing(paths.journal.open()) as log:
                    apply_retention(lake, app_of(log.uid), datetime.now(UTC))
            for table in tables_of(lake):
                display.doing(table.table.name)
                done = table.compact()
                rows.append({"table": table.table.name, **done, "vacuumed": table.vacuum(vacuum_hours)})
        finally:
            lock.close()
    headings = ("table", "removed", "added", "vacuumed")
    out.show(rows, lambda: out.table(headings, [[row[name] for name in headings] for row in rows], empty="no tables"))


@click.command("verify")
@on_spark
def verify(paths: PipelinePaths, as_json: bool, spark_options: SparkOptions) -> None:
    """Recompute silver and gold from bronze and compare. Exit code 1 if a row differs.

    JSON: [{"table", "rows", "missing", "unexpected"}]
    """
    out = Output(as_json)
    rows, good = [], True
    with Display("verify") as display:
        lake = paths.lake()
        lock = lake.lock()
        try:
            with session(paths, display, spark_options) as spark:
                from penstock.pipeline.verify import verify as verdicts

                display.doing("comparing")
                for verdict in verdicts(spark, lake):
                    rows.append(msgspec.structs.asdict(verdict))
                    good = good and verdict.good
                    display.doing(verdict.table)
        finally:
            lock.close()
    headings = ("table", "rows", "missing", "unexpected")
    out.show(rows, lambda: out.table(headings, [[row[name] for name in headings] for row in rows], empty="no tables"))
    if not good:
        raise CommandFailed(
            "the lake does not match its events (rebuild it with `penstock pipeline run` and a new --lake)"
        )


@click.command("report")
@click.option("--from", "start", type=Time(), help="Start: 2026-01-31T12:00 (UTC) or 24h (ago).  [default: everything]")
@click.option("--to", "end", type=Time(), help="End, not included.")
@click.option("--queue", cls=QueueOption, help="Only this queue.")
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), default="penstock-report.html", show_default=True
)
@on_lake
def report(
    paths: PipelinePaths, start: datetime | None, end: datetime | None, queue: str | None, file: Path, as_json: bool
) -> None:
    """Write an HTML report with plots. Needs no Java.

    JSON: {"report", "bytes"}
    """
    from penstock.pipeline.report.report import report as page

    out = Output(as_json)
    file.write_text(page(paths.lake(), start, end, queue), encoding="utf-8")
    answer = {"report": str(file), "bytes": file.stat().st_size}
    out.show(answer, lambda: out.fields(answer))
