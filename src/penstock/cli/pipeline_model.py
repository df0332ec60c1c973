"""`penstock pipeline model …`"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from penstock.cli.common import QUEUE, WRONG, CommandFailed
from penstock.cli.output import Output, write
from penstock.cli.pipeline import PipelinePaths, SparkOptions, on_lake, on_spark, session
from penstock.cli.pipeline_progress import Display
from penstock.cli.pipeline_run import catch_up
from penstock.core.signals import StopFlag


@click.group("model")
def command() -> None:
    """Keep tables of your own in the lake: typed message bodies and the results of queries."""


SCHEMA = click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON Schema file."
)


@command.command("add")
@click.argument("name")
@click.option("--queue", type=QUEUE, required=True, help="Queue whose messages the table has.")
@SCHEMA
@click.option("--infer", type=click.IntRange(1, 1_000_000), help="Infer the schema from N messages in the lake.")
@on_lake
def add(paths: PipelinePaths, name: str, queue: str, schema: Path | None, infer: int | None, as_json: bool) -> None:
    """Keep the message bodies of a queue as typed columns, in the table model.NAME.

    Messages that do not fit the schema go to model.NAME_quarantine. The tables are filled by `penstock pipeline run`.
    For an existing model, the schema may add optional properties; it applies to messages from now on.

    JSON: {"model", "queue", "columns", "schema"}
    """
    if (schema is None) == (infer is None):
        raise CommandFailed("give either --schema or --infer", WRONG)
    from penstock.pipeline.models import manage
    from penstock.pipeline.models.inference import infer as inferred

    lake = paths.lake()
    given = inferred(lake, queue, infer) if infer is not None else _read(schema)
    found = manage.add(lake, _app(paths), name, queue, given)
    columns = found.tables[0].schema
    answer = {
        "model": name,
        "queue": queue,
        "columns": {field.name: str(field.type) for field in columns},
        "schema": given,
    }
    out = Output(as_json)
    out.show(answer, lambda: out.table(("column", "type"), [(each.name, str(each.type)) for each in columns], empty=""))


def _read(file: Path | None) -> Any:
    assert file is not None
    try:
        return msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {error}", WRONG) from None


def _app(paths: PipelinePaths) -> str:
    from penstock.pipeline.lake.lake import app_of

    with closing(paths.journal.open()) as log:
        return app_of(log.uid)


@command.command("list")
@on_lake
def list_models(paths: PipelinePaths, as_json: bool) -> None:
    """List the models of the lake.

    JSON: [{"model", "kind", "queue", "rows", "quarantined", "lag"}]
    """
    from penstock.pipeline.models.catalog import tables_of_model
    from penstock.pipeline.models.definitions import Definitions

    lake, out, rows = paths.lake(), Output(as_json), []
    app, end = _app(paths), _end(paths)
    for found in Definitions(lake).all().values():
        sizes = [table.size(app) if table.exists() else None for table in tables_of_model(lake, found)]
        position = None if sizes[0] is None else sizes[0].position
        rows.append(
            {
                "model": found.name,
                "kind": found.kind,
                "queue": found.queue or None,
                "rows": 0 if sizes[0] is None else sizes[0].rows,
                "quarantined": 0 if sizes[-1] is None or len(sizes) == 1 else sizes[-1].rows,
                "lag": None if position is None else end - position,
            }
        )
    headings = ("model", "kind", "queue", "rows", "quarantined", "lag")
    out.show(rows, lambda: out.table(headings, [[row[name] for name in headings] for row in rows], empty="no models"))


def _end(paths: PipelinePaths) -> int:
    with closing(paths.journal.open()) as log:
        return log.next_offset


@command.command("show")
@click.argument("name")
@on_lake
def show(paths: PipelinePaths, name: str, as_json: bool) -> None:
    """Show a model's schema, or its query.

    JSON: {"model", "kind", "queue", "schema", "since", "sql"}
    """
    from penstock.pipeline.models.definitions import Definitions

    found = Definitions(paths.lake()).get(name)
    typed = found.kind == "typed"
    answer = {
        "model": name,
        "kind": found.kind,
        "queue": found.queue or None,
        "schema": found.newest.schema if typed else None,
        "since": found.newest.since if typed else None,
        "sql": found.sql or None,
    }
    text = msgspec.json.format(msgspec.json.encode(answer["schema"]), indent=2) if typed else found.sql.encode()
    Output(as_json).show(answer, lambda: write(text.rstrip() + b"\n"))


@command.command("rebuild")
@click.argument("name")
@SCHEMA
@on_spark
def rebuild(paths: PipelinePaths, name: str, schema: Path | None, as_json: bool, spark_options: SparkOptions) -> None:
    """Compute all rows of a model again, for example with a new schema.

    Readers see the old rows until the new ones are complete. If it is interrupted, the next `penstock pipeline run`
    completes it.

    JSON: {"events", "steps", "offset", "lag", "lost", "dropped"}
    """
    from penstock.pipeline.models.manage import new_generation

    given = None if schema is None else _read(schema)
    out, totals = Output(as_json), {"events": 0, "steps": 0, "offset": 0, "lag": 0, "lost": 0, "dropped": 0}
    with Display("rebuild") as display, session(paths, display, spark_options) as spark:
        from penstock.pipeline.run import Pipeline

        with Pipeline(spark, paths.journal, paths.lake(), doing=display.doing) as pipeline:
            new_generation(paths.lake(), name, given)
            catch_up(pipeline, display, totals, StopFlag())
        display.clear()
        out.show(totals, partial(out.fields, totals))


@command.command("remove")
@click.argument("name")
@on_lake
def remove(paths: PipelinePaths, name: str, as_json: bool) -> None:
    """Remove a model and the rows of its tables.

    JSON: {"removed"}
    """
    from penstock.pipeline.models import manage

    manage.remove(paths.lake(), name)
    answer = {"removed": name}
    out = Output(as_json)
    out.show(answer, lambda: out.fields(answer))
