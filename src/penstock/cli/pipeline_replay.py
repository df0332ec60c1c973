"""`penstock pipeline replay` and `load`"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.common import QUEUE
from penstock.cli.output import Output, note
from penstock.cli.pipeline import PipelinePaths, SparkOptions, asking, on_spark, session
from penstock.cli.pipeline_progress import Display
from penstock.core.redact import place_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.source.options import WriteOptions

TO = click.option("--to", type=QUEUE, required=True, help="Target queue; created if it does not exist.")
RATE = click.option("--rate", type=click.FloatRange(0.001, 1e9), help="Most messages per second.")
NAME = click.option(
    "--run", "run", help="Name of the run; a run pushes its messages once.  [default: derived from the arguments]"
)
DRY = click.option("--dry-run", is_flag=True, help="Only count the messages.")

Rows = Callable[["SparkSession"], "DataFrame"]


@click.command("replay")
@click.option("--where", required=True, help="SQL condition on the push and its outcome.")
@TO
@RATE
@NAME
@DRY
@on_spark
def replay(paths: PipelinePaths, where: str, to: str, run: str | None, **rest: Any) -> None:
    """Push messages from the lake again, as they were first pushed.

    The condition may use the columns of bronze.events at the push (queue, id, at, priority, content, details) and of
    the message's outcome (outcome, finished_at, reason, errors, wait_ms, service_ms, total_ms). After an interruption
    the same command continues; once it is complete it pushes nothing more. --run NAME starts another run.

    JSON: {"matched", "pushed", "run"}
    """
    from penstock.pipeline.lake.tables import BRONZE, SILVER
    from penstock.pipeline.replay import count_too_large, pushed_messages, run_name, with_lives

    lake = paths.lake()

    def rows(spark: SparkSession) -> DataFrame:
        events, lives = lake[BRONZE].read(spark), lake[SILVER].read(spark)
        too_large = count_too_large(events, lives, where)
        if too_large:
            note(f"left out {too_large} messages whose payloads were too large for the journal")
        return pushed_messages(with_lives(events, lives), where).drop("queue", "id")

    _push(paths, rows, to, run or run_name("replay", where, to, place_in(paths.url)), what="replay", **rest)


@click.command("load")
@click.argument("files")
@TO
@RATE
@NAME
@DRY
@on_spark
def load(paths: PipelinePaths, files: str, to: str, run: str | None, **rest: Any) -> None:
    """Push the rows of FILES (a path or a pattern; Parquet, CSV or JSON; CSV and JSON may be gzipped).

    Columns payload, content, priority, delay_ms, ttl_ms, key and headers are used as such; rows with other columns
    become JSON payloads. After an interruption the same command continues; once it is complete it pushes nothing more.
    --run NAME starts another run.

    JSON: {"matched", "pushed", "run"}
    """
    from penstock.pipeline.replay import absolute, rows_of_files, run_name

    run = run or run_name("load", absolute(files), to, place_in(paths.url))
    _push(paths, lambda spark: rows_of_files(spark, files), to, run, "load", **rest)


def _push(
    paths: PipelinePaths,
    rows: Rows,
    to: str,
    run: str,
    what: str,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    spark_options: SparkOptions,
) -> None:
    out = Output(as_json)
    options = _options(paths, to, run)
    with Display(what) as display:
        from penstock.pipeline.sink.staging import Batch

        batch = Batch(options, run)
        manifest = batch.manifest()
        if manifest is None:
            with session(paths, display, spark_options, brief=True) as spark:
                from penstock.pipeline.replay import stage_frame

                display.doing("gathering")
                with asking():
                    frame = rows(spark)
                    staged = [] if dry_run else stage_frame(frame, options)
                    matched = frame.count() if dry_run else sum(each.rows for each in staged)
            if dry_run or not matched:
                _show(out, matched, 0, run)
                return
            manifest = batch.decide(staged)
        elif manifest.finished:
            note("this run is complete already; start another with --run NAME")
        before, left_out = manifest.done, manifest.left_out
        if not dry_run:
            display.doing("pushing")
            display.more(manifest.rows - before)
            manifest = batch.send(rate=rate, advance=display.done)
    left_out = manifest.left_out - left_out
    if left_out:
        note(f"left out {left_out} messages that exceed the server's size limit")
    _show(out, manifest.rows, manifest.done - before - left_out, run)


def _options(paths: PipelinePaths, to: str, run: str) -> WriteOptions:
    from penstock.pipeline.source.options import WriteOptions

    return WriteOptions(
        url=paths.url,
        queue=to,
        token=paths.token,
        name=run,
        staging=paths.lake_folder / "staging",
    )


def _show(out: Output, matched: int, pushed: int, run: str) -> None:
    answer = {"matched": matched, "pushed": pushed, "run": run}
    out.show(answer, lambda: out.fields(answer))
