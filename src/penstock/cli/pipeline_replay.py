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

TO = click.option("--to", type=QUEUE, required=True, help="The queue; made if it is not there.")
RATE = click.option("--rate", type=click.FloatRange(0.001, 1e9), help="At most so many messages a second.")
NAME = click.option("--run", "run", help="What this run is called; a run adds its messages once.")
DRY = click.option("--dry-run", is_flag=True, help="Only count.")

Rows = Callable[["SparkSession"], "DataFrame"]


@click.command("replay")
@click.option("--where", required=True, help="Which messages: SQL over the push and its outcome.")
@TO
@RATE
@NAME
@DRY
@on_spark
def replay(places: PipelinePaths, where: str, to: str, run: str | None, **rest: Any) -> None:
    """Push messages of the lake again, as they were pushed then.

    The condition may use the columns of bronze.events at the push (queue, id, at, priority, content, details) and of
    the last life (outcome, finished_at, reason, errors, wait_ms, service_ms, total_ms). Interrupted, the same command
    goes on; done, it adds nothing: --run names another run.

    JSON: {"matched", "pushed", "run"}
    """
    from penstock.pipeline.lake.tables import BRONZE, SILVER
    from penstock.pipeline.replay import count_too_large, pushed_messages, run_name, with_lives

    lake = places.lake()

    def rows(spark: SparkSession) -> DataFrame:
        events, lives = lake[BRONZE].read(spark), lake[SILVER].read(spark)
        too_large = count_too_large(events, lives, where)
        if too_large:
            note(f"{too_large} messages are left out: their bodies were too large for the journal")
        return pushed_messages(with_lives(events, lives), where).drop("queue", "id")

    _push(places, rows, to, run or run_name("replay", where, to, place_in(places.url)), what="replay", **rest)


@click.command("load")
@click.argument("files")
@TO
@RATE
@NAME
@DRY
@on_spark
def load(places: PipelinePaths, files: str, to: str, run: str | None, **rest: Any) -> None:
    """Push the rows of FILES (a path or a pattern; Parquet, CSV, JSON; CSV and JSON may be packed, .gz).

    Columns payload, content, priority, delay_ms, ttl_ms, key, headers are taken as such; rows with others become JSON.
    Interrupted, the same command goes on; done, it adds nothing: --run names another run.

    JSON: {"matched", "pushed", "run"}
    """
    from penstock.pipeline.replay import absolute, rows_of_files, run_name

    run = run or run_name("load", absolute(files), to, place_in(places.url))
    _push(places, lambda spark: rows_of_files(spark, files), to, run, "load", **rest)


def _push(
    places: PipelinePaths,
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
    options = _options(places, to, run)
    with Display(what) as display:
        from penstock.pipeline.sink.staging import Batch

        batch = Batch(options, run)
        manifest = batch.manifest()
        if manifest is None:
            with session(places, display, spark_options, brief=True) as spark:
                from penstock.pipeline.replay import stage_frame

                display.doing("gathering")
                with asking():
                    frame = rows(spark)
                    staged = [] if dry_run else stage_frame(frame, options)
                    matched = frame.count() if dry_run else sum(each.rows for each in staged)
            if dry_run or not matched:
                _tell(out, matched, 0, run)
                return
            manifest = batch.decide(staged)
        elif manifest.finished:
            note("this run is done already; --run NAME makes another")
        before, left_out = manifest.done, manifest.left_out
        if not dry_run:
            display.doing("pushing")
            display.more(manifest.rows - before)
            manifest = batch.send(rate=rate, advance=display.done)
    left_out = manifest.left_out - left_out
    if left_out:
        note(f"{left_out} messages are left out: they are larger than the server takes")
    _tell(out, manifest.rows, manifest.done - before - left_out, run)


def _options(places: PipelinePaths, to: str, run: str) -> WriteOptions:
    from penstock.pipeline.source.options import WriteOptions

    return WriteOptions(
        url=places.url,
        queue=to,
        token=places.token,
        name=run,
        staging=places.lake_folder / "staging",
    )


def _tell(out: Output, matched: int, pushed: int, run: str) -> None:
    answer = {"matched": matched, "pushed": pushed, "run": run}
    out.show(answer, lambda: out.fields(answer))
