"""`penstock pipeline …`: what passed through the queues, as tables, on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common import DB_NAME, JSON, Command, Failed, reporting, with_options
from penstock.cli.lazy import LazyGroup
from penstock.cli.pipeline_progress import Display
from penstock.errors import CannotOpen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake import Lake

COMMANDS = {
    "compact": ("penstock.cli.pipeline_tables:compact", "Few large files in the place of many small ones."),
    "load": ("penstock.cli.pipeline_replay:load", "Push the rows of Parquet, CSV or JSON files."),
    "replay": ("penstock.cli.pipeline_replay:replay", "Push messages of the lake again."),
    "report": ("penstock.cli.pipeline_tables:report", "A page of plots for a span of time."),
    "run": ("penstock.cli.pipeline_run:run", "Bring the lake up to date, once or for ever."),
    "sql": ("penstock.cli.pipeline_sql:sql", "Ask the lake and the live store."),
    "status": ("penstock.cli.pipeline_tables:status", "What is in each table, and how fresh it is."),
    "verify": ("penstock.cli.pipeline_tables:verify", "Compute every table anew from bronze, and compare."),
}
DEFAULT_DATA = "./penstock-data"


@click.group("pipeline", cls=LazyGroup, late=COMMANDS)
def command() -> None:
    """Everything that passed through the queues, as tables: bronze, silver, gold."""


class Places:
    """Where the queues and the lake are."""

    def __init__(self, data: str | None, db: str | None, lake: str | None) -> None:
        if data is not None and db is not None:
            raise click.UsageError("--db is a file and --data a server's folder: name one of them")
        self.database = Path(db) if db is not None else Path(data or DEFAULT_DATA) / DB_NAME
        self._lake = lake
        self.log = self.lake_folder / "logs" / "spark.log"

    @property
    def lake_folder(self) -> Path:
        return Path(self._lake) if self._lake is not None else self.database.parent / "lake"

    @property
    def journal(self) -> Path:
        from penstock.journal.drain import journal_folder

        return journal_folder(self.database)

    def lake(self, *, existing: bool = True) -> Lake:
        from penstock.pipeline.lake import Lake

        lake = Lake(self.lake_folder)
        if existing and not lake.exists():
            raise CannotOpen(f"there is no lake in {self.lake_folder}", hint="`penstock pipeline run` makes it")
        return lake


def on_lake(command: Command) -> Command:
    """A command that is given places."""

    @wraps(command)
    def run(data: str | None, db: str | None, lake: str | None, **rest: Any) -> None:
        with reporting():
            if find_spec("deltalake") is None or find_spec("pyspark") is None:
                raise CannotOpen("the pipeline is not installed", hint="pip install 'penstock[spark]'")
            command(Places(data, db, lake), **rest)

    return with_options(run, [DATA, DB, LAKE, JSON])


def on_spark(command: Command) -> Command:
    return with_options(on_lake(command), [MASTER, MEMORY])


DATA = click.option("--data", type=click.Path(file_okay=False), help=f"A server's folder.  [default: {DEFAULT_DATA}]")
DB = click.option("--db", type=click.Path(dir_okay=False), help="A queue's file, if it is not in such a folder.")
LAKE = click.option("--lake", type=click.Path(file_okay=False), help="The tables.  [default: lake, beside the file]")
MASTER = click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
MEMORY = click.option("--memory", default="1g", show_default=True, help="Of Spark's driver.")


@contextmanager
def session(
    places: Places, display: Display, master: str, memory: str, *, brief: bool = False
) -> Iterator[SparkSession]:
    """Spark, with a word about it from the first moment."""
    display.doing("starting Spark")
    from penstock.pipeline.session import open_session

    spark = open_session(places.log, master=master, memory=memory, brief=brief)
    try:
        yield spark
    finally:
        display.doing("stopping Spark")
        spark.stop()


@contextmanager
def asking() -> Iterator[None]:
    """Around what a user's own SQL or files can make fail: Spark's reason, without its stack."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Failed(str(error).split("\n\n")[0].split("\nJVM stacktrace")[0].strip()) from None
