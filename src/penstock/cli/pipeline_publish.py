"""`penstock pipeline publish`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from penstock.cli.output import Output
from penstock.cli.pipeline import PipelinePaths, on_lake
from penstock.cli.pipeline_progress import Display
from penstock.cli.pipeline_run import Every
from penstock.core.signals import stop_on_signals

HEADINGS = ("table", "version", "deleted", "inserted", "whole")
# Bronze has the bodies of all messages: query it in the lake.
NAMES = ("silver.messages", "gold.queues", "gold.queue_minutes", "gold.errors")
GOLD = tuple(name for name in NAMES if name.startswith("gold."))


@click.command("publish")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="URL",
    envvar="PENSTOCK_PUBLISH_TO",
    show_envvar=True,
    help="PostgreSQL database to copy to.",
)
@click.option("--schema", help="Schema of the copies.  [default: penstock_lake]")
@click.option(
    "--table",
    "names",
    type=click.Choice(NAMES),
    multiple=True,
    default=GOLD,
    help="Copy this table; may be repeated.  [default: all gold tables]",
)
@click.option("--every", type=Every(), help="Publish again after this time, until interrupted.")
@on_lake
def publish(
    paths: PipelinePaths, target: str, schema: str | None, names: Sequence[str], every: float | None, as_json: bool
) -> None:
    """Copy tables to PostgreSQL, where Grafana, Superset or Metabase can read them. Needs no Java.

    The first time it copies whole tables, then what has changed. Each table changes in one transaction.

    JSON: [{"table", "version", "deleted", "inserted", "whole"}]
    """
    from penstock.pipeline.lake.tables import TABLES
    from penstock.pipeline.publish import Publisher

    out, lake = Output(as_json), paths.lake()
    with stop_on_signals() as stop, Publisher(target, schema) as publisher:
        while True:
            rows = []
            with Display("publish") as display:
                for name in dict.fromkeys(names):
                    display.doing(name)
                    rows.append(msgspec.structs.asdict(publisher.publish(lake[TABLES[name]])))
            _show(out, rows)
            if every is None or stop.wait(every):
                return


def _show(out: Output, rows: list[dict[str, Any]]) -> None:
    cells = [[row[name] for name in HEADINGS] for row in rows]
    out.show(rows, lambda: out.table(HEADINGS, cells, empty="no tables"))
