"""`penstock pipeline …`: everything that went through the queues, as tables on Spark."""

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
    "compact": ("penstock.cli.pipeline_tables:compact", "Merge small files and remove unused ones."),
    "forget": ("penstock.cli.pipeline_forget:forget", "Remove what the lake holds of some messages."),
    "load": ("penstock.cli.pipeline_replay:load", "Push the rows of Parquet, CSV or JSON files."),
    "model": ("penstock.cli.pipeline_model:command", "Keep tables of your own in the lake."),
    "publish": ("penstock.cli.pipeline_publish:publish", "Copy tables to PostgreSQL for BI tools."),
    "replay": ("penstock.cli.pipeline_replay:replay", "Push messages from the lake again."),
    "report": ("penstock.cli.pipeline_tables:report", "Write an HTML report with plots."),
    "retain": ("penstock.cli.pipeline_retain:retain", "Set how long the lake keeps what."),
    "run": ("penstock.cli.pipeline_run:run", "Bring the lake up to date, once or continuously."),
    "sql": ("penstock.cli.pipeline_sql:sql", "Query the lake and the live store with SQL."),
    "status": ("penstock.cli.pipeline_tables:status", "Show the size and lag of each table."),
    "tables": ("penstock.cli.pipeline_tables:tables", "List the tables, or print CREATE TABLE statements."),
    "verify": ("penstock.cli.pipeline_tables:verify", "Recompute every table from bronze and compare."),
    "warm": ("penstock.cli.pipeline_warm:warm", "Keep a Spark JVM running for the next commands."),
}
DEFAULT_DATA = "./penstock-data"


@click.group("pipeline", cls=LazyGroup, lazy=COMMANDS)
def command() -> None:
    """Query everything that went through the queues, as bronze, silver and gold tables."""


class PipelinePaths:
    """The locations of the queues and the lake."""

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
        from penstock.pipeline.lake.storage import folder_at, logs_of

        data = None if data is None else str(local_path(data, "data"))
        db = None if db is None else str(local_path(db, "db"))
        where = where_of(url, db, data, store)
        if url is not None:
            url, token = server_of(url, token)
        self.remote = store or url  # None if the queues are in a file.
        self.token = token
        self.database = Path(DEFAULT_DATA, DB_NAME) if where is None or self.remote else Path(where)
        beside = self.database.absolute().parent / "lake"
        found = beside if lake is None else folder_at(lake)
        self.lake_folder = found.absolute() if isinstance(found, Path) else found
        self.log = logs_of(self.lake_folder) / "spark.log"

    @property
    def url(self) -> str:
        """The URL for `penstock.connect`."""
        return self.remote or f"sqlite:///{self.database.absolute()}"

    @property
    def journal(self) -> LogLocation:
        from penstock.journal.drainer import journal_folder
        from penstock.pipeline.source.log_sources import FolderLocation, location_of

        if self.remote is not None:
            return location_of(self.remote, token=self.token)
        return FolderLocation(str(journal_folder(self.database.absolute())))  # The queue file itself may be deleted.

    def drainer(self) -> Drainer:
        from penstock.pipeline.source.journal_sync import drainer_of

        return drainer_of(self.remote, self.database)

    def live(self) -> LiveTables:
        """Return the tables that show the store's present state."""
        from penstock.pipeline.lake.live_tables import LiveTables

        return LiveTables(self.url if self.remote or self.database.exists() else None, self.token)

    def lake(self, *, existing: bool = True) -> Lake:
        from penstock.pipeline.lake.lake import Lake

        lake = Lake(self.lake_folder)
        if existing and not lake.exists():
            raise CannotOpen(f"there is no lake in {self.lake_folder}", hint="create it with `penstock pipeline run`")
        return lake


def on_lake(command: Command) -> Command:
    """Pass the pipeline's paths to a command."""

    @wraps(command)
    def run(**given: Any) -> None:
        paths = {name: given.pop(name) for name in ("data", "db", "store", "url", "token", "lake")}
        with reporting():
            if find_spec("deltalake") is None or find_spec("pyspark") is None:
                raise CannotOpen("the pipeline is not installed", hint="pip install 'penstock-mq[spark]'")
            command(PipelinePaths(**paths), **given)

    return with_options(run, [DATA, DB, STORE, URL, TOKEN, LAKE, JSON])


class SparkOptions(NamedTuple):
    master: str
    memory: str
    settings: dict[str, str]


def on_spark(command: Command) -> Command:
    """Pass the pipeline's paths and the Spark options to a command."""

    @wraps(command)
    def run(paths: PipelinePaths, *, master: str, memory: str, conf: Sequence[tuple[str, str]], **given: Any) -> None:
        command(paths, spark_options=SparkOptions(master, memory, dict(conf)), **given)

    return with_options(on_lake(run), [MASTER, MEMORY, CONF])


class Setting(click.ParamType[tuple[str, str]]):
    """A Spark setting, KEY=VALUE."""

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


DATA = click.option(
    "--data", type=click.Path(file_okay=False), help=f"Server's data folder.  [default: {DEFAULT_DATA}]"
)
DB = click.option("--db", type=click.Path(dir_okay=False), help="Queue file, if it is not in a data folder.")
URL = click.option("--url", help="Server whose journal to read over HTTP.")
TOKEN = click.option("--token", help="The server's admin token.  [env: PENSTOCK_TOKEN]")
LAKE = click.option("--lake", help="Folder or URL (s3://…) of the tables.  [default: lake, beside the file]")
MASTER = click.option("--master", default="local[*]", show_default=True, help="Spark master.")
CHOSEN_ELSEWHERE = {"spark.master": "--master", "spark.driver.memory": "--memory"}
CONF = click.option("--conf", type=Setting(), multiple=True, help="Spark setting, spark.KEY=VALUE; repeatable.")
MEMORY = click.option("--memory", default="1g", show_default=True, help="Memory of the Spark driver.")


@contextmanager
def session(
    paths: PipelinePaths, display: Display, options: SparkOptions, *, brief: bool = False
) -> Iterator[SparkSession]:
    """Open a Spark session, showing progress from the start."""
    master, memory, settings = options
    display.print(f"Spark log: {paths.log}")
    display.doing("starting Spark")
    from penstock.pipeline.runtime.cds_archive import keep_soon
    from penstock.pipeline.runtime.gateway import JavaEnded, forget_java, has_java_ended
    from penstock.pipeline.runtime.session import open_session
    from penstock.pipeline.runtime.warm_jvm import borrow

    paths.log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=paths.log)  # Otherwise py4j prints a traceback when an interrupt cuts a call short.
    # Most settings of a running JVM cannot be changed.
    may_borrow = brief and master.startswith("local") and not settings
    # Credentials of object storage are often in this command's environment, which a running JVM does not have.
    borrowed = borrow(memory) if may_borrow and isinstance(paths.lake_folder, Path) else None
    spark = open_session(paths.log, master=master, memory=memory, brief=brief, settings=settings, borrowed=borrowed)
    _tell_reader(spark, paths)
    ended = False
    try:
        yield spark
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from None
        if ended := has_java_ended(spark, error):
            raise JavaEnded("the Spark JVM exited", hint=f"it may have been killed; see {paths.log}") from error
        raise
    finally:
        display.doing("stopping Spark")
        if ended:
            forget_java(spark)
        else:
            spark.stop()
        if borrowed is not None:
            atexit.unregister(spark.stop)  # The JVM belongs to the next command by then.
            borrowed.give_back()
    if borrowed is None and keep_soon():
        note("preparing a faster start for next time, in the background (about a minute)")


def _tell_reader(spark: SparkSession, paths: PipelinePaths) -> None:
    """Say once if Spark cannot read the lake itself."""
    from penstock.pipeline.lake.storage import RemoteFolder

    if isinstance(paths.lake_folder, RemoteFolder):
        from penstock.pipeline.lake.remote_files import connector_of

        if connector_of(spark, paths.lake_folder) is None:
            scheme = paths.lake_folder.scheme
            note(f"Spark has no connector for {scheme}:// and reads the lake through Python, which is slower")


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if the error follows from a Ctrl-C, which cancels Spark's running job."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def asking(hint: str = "") -> Iterator[None]:
    """Turn Spark's errors about the user's SQL or files into one line. The hint is added for an unknown table."""
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
    """Return the first line of Spark's error and its position, without the query plan and general advice."""
    reason, _, rest = text.partition(" SQLSTATE:")
    position = re.search(r"line (\d+),? pos(?:ition)? (\d+)", rest)
    first_line = reason.strip().partition("\n")[0]
    return f"{first_line} (line {position[1]}, position {position[2]})" if position else first_line
