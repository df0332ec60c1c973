"""`penstock pipeline …`: what passed through the queues, as tables, on Spark."""

from __future__ import annotations

import atexit
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.common import (
    DB_NAME,
    JSON,
    STORE,
    Command,
    CommandFailed,
    reporting,
    server_of,
    where_of,
    with_options,
)
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.output import note
from penstock.cli.pipeline_progress import Display
from penstock.errors import CannotOpen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.lake import Lake
    from penstock.pipeline.lake.live_tables import LiveTables
    from penstock.pipeline.source.journal_sync import Drainer
    from penstock.pipeline.source.log_sources import LogLocation

COMMANDS = {
    "compact": ("penstock.cli.pipeline_tables:compact", "Few large files in the place of many small ones."),
    "load": ("penstock.cli.pipeline_replay:load", "Push the rows of Parquet, CSV or JSON files."),
    "replay": ("penstock.cli.pipeline_replay:replay", "Push messages of the lake again."),
    "report": ("penstock.cli.pipeline_tables:report", "A page of plots for a span of time."),
    "run": ("penstock.cli.pipeline_run:run", "Bring the lake up to date, once or for ever."),
    "sql": ("penstock.cli.pipeline_sql:sql", "Ask the lake and the live store."),
    "status": ("penstock.cli.pipeline_tables:status", "What is in each table, and how fresh it is."),
    "verify": ("penstock.cli.pipeline_tables:verify", "Compute every table anew from bronze, and compare."),
    "warm": ("penstock.cli.pipeline_warm:warm", "Keep Spark at hand for the commands to come."),
}
DEFAULT_DATA = "./penstock-data"


@click.group("pipeline", cls=LazyGroup, late=COMMANDS)
def command() -> None:
    """Everything that passed through the queues, as tables: bronze, silver, gold."""


class PipelinePaths:
    """Where the queues and the lake are."""

    def __init__(
        self,
        *,
        data: str | None,
        db: str | None,
        store: str | None,
        url: str | None,
        token: str | None,
        lake: str | None,
    ) -> None:
        from penstock.core.paths import local_path

        data = None if data is None else str(local_path(data, "data"))
        db = None if db is None else str(local_path(db, "db"))
        where = where_of(url, db, data, store)
        if url is not None:
            url, token = server_of(url, token)
        self.remote = store or url
        """A database or a server, if it is not a file."""
        self.token = token
        self.database = Path(DEFAULT_DATA, DB_NAME) if where is None or self.remote else Path(where)
        beside = self.database.absolute().parent / "lake"
        self.lake_folder = beside if lake is None else local_path(lake, "lake").absolute()
        self.log = self.lake_folder / "logs" / "spark.log"

    @property
    def url(self) -> str:
        """As `penstock.connect` takes it."""
        return self.remote or f"sqlite:///{self.database.absolute()}"

    @property
    def journal(self) -> LogLocation:
        from penstock.journal.drainer import journal_folder
        from penstock.pipeline.source.log_sources import FolderLocation, location_of

        if self.remote is not None:
            return location_of(self.remote, token=self.token)
        return FolderLocation(str(journal_folder(self.database.absolute())))  # The file itself may be gone.

    def drainer(self) -> Drainer:
        from penstock.pipeline.source.journal_sync import drainer_of

        return drainer_of(self.remote, self.database)

    def live(self) -> LiveTables:
        """The store as it is now."""
        from penstock.pipeline.lake.live_tables import LiveTables

        return LiveTables(self.url if self.remote or self.database.exists() else None, self.token)

    def lake(self, *, existing: bool = True) -> Lake:
        from penstock.pipeline.lake.lake import Lake

        lake = Lake(self.lake_folder)
        if existing and not lake.exists():
            raise CannotOpen(f"there is no lake in {self.lake_folder}", hint="`penstock pipeline run` makes it")
        return lake


def on_lake(command: Command) -> Command:
    """A command that is given places."""

    @wraps(command)
    def run(**given: Any) -> None:
        places = {name: given.pop(name) for name in ("data", "db", "store", "url", "token", "lake")}
        with reporting():
            if find_spec("deltalake") is None or find_spec("pyspark") is None:
                raise CannotOpen("the pipeline is not installed", hint="pip install 'penstock-mq[spark]'")
            command(PipelinePaths(**places), **given)

    return with_options(run, [DATA, DB, STORE, URL, TOKEN, LAKE, JSON])


class SparkOptions(NamedTuple):
    master: str
    memory: str
    settings: dict[str, str]


def on_spark(command: Command) -> Command:
    """A command that is given places and what Spark is started with."""

    @wraps(command)
    def run(places: PipelinePaths, *, master: str, memory: str, conf: Sequence[tuple[str, str]], **given: Any) -> None:
        command(places, spark_options=SparkOptions(master, memory, dict(conf)), **given)

    return with_options(on_lake(run), [MASTER, MEMORY, CONF])


class Setting(click.ParamType[tuple[str, str]]):
    """A setting of Spark's: KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, setting = value.partition("=")
        if not equals or not name.startswith("spark."):
            self.fail(f"expected spark.KEY=VALUE, got {name!r}", param, ctx)
        if name in CHOSEN_ELSEWHERE:
            self.fail(f"{name} is set with {CHOSEN_ELSEWHERE[name]}", param, ctx)
        return name, setting


DATA = click.option("--data", type=click.Path(file_okay=False), help=f"A server's folder.  [default: {DEFAULT_DATA}]")
DB = click.option("--db", type=click.Path(dir_okay=False), help="A queue's file, if it is not in such a folder.")
URL = click.option("--url", help="A server, whose journal is read over HTTP.")
TOKEN = click.option("--token", help="Its admin token.  [env: PENSTOCK_TOKEN]")
LAKE = click.option("--lake", type=click.Path(file_okay=False), help="The tables.  [default: lake, beside the file]")
MASTER = click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
CHOSEN_ELSEWHERE = {"spark.master": "--master", "spark.driver.memory": "--memory"}
CONF = click.option("--conf", type=Setting(), multiple=True, help="Set an option of Spark; may be given several times.")
MEMORY = click.option("--memory", default="1g", show_default=True, help="Of Spark's driver.")


@contextmanager
def session(
    places: PipelinePaths, display: Display, options: SparkOptions, *, brief: bool = False
) -> Iterator[SparkSession]:
    """Spark, with a word about it from the first moment."""
    master, memory, settings = options
    display.tell(f"Spark's own log: {places.log}")
    display.doing("starting Spark")
    from penstock.pipeline.runtime.cds_archive import keep_soon
    from penstock.pipeline.runtime.gateway import JavaEnded, forget_java, has_java_ended
    from penstock.pipeline.runtime.session import open_session
    from penstock.pipeline.runtime.warm_jvm import borrow

    places.log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=places.log)  # Where py4j would print how an interrupt cut it short.
    # A Java that runs already has most settings.
    borrowed = borrow(memory) if brief and master.startswith("local") and not settings else None
    spark = open_session(places.log, master=master, memory=memory, brief=brief, settings=settings, borrowed=borrowed)
    ended = False
    try:
        yield spark
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from None
        if ended := has_java_ended(spark, error):
            raise JavaEnded("Spark's Java has ended", hint=f"was it killed? see {places.log}") from error
        raise
    finally:
        display.doing("stopping Spark")
        if ended:
            forget_java(spark)
        else:
            spark.stop()
        if borrowed is not None:
            atexit.unregister(spark.stop)  # It is the next one's by then.
            borrowed.give_back()
    if borrowed is None and keep_soon():
        note("the next start will be faster: that is prepared in the background, for a minute")


def _was_interrupted(error: BaseException | None) -> bool:
    """A job that was cancelled for a Ctrl-C fails, too, and that is told instead."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def asking(hint: str = "") -> Iterator[None]:
    """Around what a user's own SQL or files can make fail: Spark's reason, without its stack. The hint is for a table
    that is not there."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        raise CommandFailed(reason_in(cause.toString())) from None
    except (PySparkException, Py4JError) as error:
        reason = reason_in(str(error))
        raise CommandFailed(f"{reason} ({hint})" if hint and "TABLE_OR_VIEW_NOT_FOUND" in reason else reason) from None


def reason_in(text: str) -> str:
    """What Spark says first, and where; not its plan, nor what it says to everybody."""
    reason, _, rest = text.partition(" SQLSTATE:")
    place = re.search(r"line (\d+),? pos(?:ition)? (\d+)", rest)
    told = reason.strip().partition("\n")[0]
    return f"{told} (line {place[1]}, position {place[2]})" if place else told
