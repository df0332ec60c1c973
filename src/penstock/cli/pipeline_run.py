"""`penstock pipeline run`"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import Output, note
from penstock.cli.pipeline import PipelinePaths, SparkOptions, on_spark, session
from penstock.cli.pipeline_progress import Display
from penstock.core.signals import StopFlag, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.lake import Lake
    from penstock.pipeline.metrics import MetricsFile
    from penstock.pipeline.run import Pipeline, Step
    from penstock.pipeline.source.journal_sync import Drainer

IDLE_SECONDS = 1.0
# Restarts of the Spark JVM in a row without a finished step.
RESTARTS = 3


class Every(click.ParamType[float]):
    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|min|h)?", str(value))
        if not found:
            self.fail(f"{value!r} is not a time such as 500ms, 10s or 5min", param, ctx)
        seconds = float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[found[2] or "s"]
        if not 0 < seconds <= 86_400:
            self.fail(f"{value!r} must be above 0 and at most a day", param, ctx)
        return seconds


@click.command("run")
@click.option("--once", "mode", flag_value="once", default="once", help="Process what is there, then exit.  [default]")
@click.option("--every", type=Every(), help="Run again after this time, until interrupted.")
@click.option(
    "--continuous", "mode", flag_value="continuous", help="Process new events as they come, until interrupted."
)
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=True,
    help="Fail if the journal was trimmed before it was read.",
)
@click.option("--mask", "masks", multiple=True, help="Field to mask, [QUEUE:]$.field; repeatable. The lake stores it.")
@click.option(
    "--mask-other",
    type=click.Choice(["drop", "keep"]),
    help="What to do with bodies that are not JSON where fields are masked.  [default: drop]",
)
@click.option(
    "--models", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of SQL models, *.sql."
)
@click.option(
    "--metrics-file", type=click.Path(dir_okay=False, path_type=Path), help="Write Prometheus metrics to this file."
)
@on_spark
def run(
    paths: PipelinePaths,
    mode: str,
    every: float | None,
    fail_on_data_loss: bool,
    masks: Sequence[str],
    mask_other: str | None,
    models: Path | None,
    metrics_file: Path | None,
    as_json: bool,
    spark_options: SparkOptions,
) -> None:
    """Bring the lake up to date with the journal.

    It may be killed at any time: the next run continues where the tables end. With --every and --continuous, Ctrl-C or
    SIGTERM ends it after the current step, and Spark is restarted if its JVM is killed.

    --mask '$.card', '$.customer.email' or '$.items[*].card' replaces the values of these fields in JSON bodies and in
    headers by ***. Masks are stored with the lake and apply to all that is added from then on, also by later runs.

    JSON: {"events", "steps", "offset", "lag", "lost", "dropped", "seconds"}
    """
    _check_masks(masks)
    out = Output(as_json)
    began = time.monotonic()
    totals = {"events": 0, "steps": 0, "offset": 0, "lag": 0, "lost": 0, "dropped": 0}
    once = mode == "once" and every is None
    with Display("pipeline") as display, closing(paths.drainer()) as drainer:
        if not sys.stderr.isatty():  # On a terminal the session prints it.
            note(f"Spark log: {paths.log}")
        drainer.drain()

        lake = paths.lake(existing=False)
        metrics = _metrics(metrics_file, lake)

        def work(spark: SparkSession) -> None:
            from penstock.pipeline.run import Pipeline

            new = partial(
                Pipeline,
                fail_on_data_loss=fail_on_data_loss,
                masks=masks,
                keep_other=None if mask_other is None else mask_other == "keep",
                models=models,
                doing=display.doing,
            )
            with metrics, new(spark, paths.journal, lake) as pipeline:
                if once:
                    catch_up(pipeline, display, totals, StopFlag(), metrics)
                else:
                    _follow(pipeline, display, totals, drainer, every, metrics)
            display.clear()
            totals["seconds"] = round(time.monotonic() - began, 1)  # type: ignore[assignment]
            if totals["offset"] == 0:
                note("the journal is empty; LiteQueue writes one only with journal=True")
            out.show(totals, lambda: out.fields(totals))  # Before Spark stops, which takes a while.

        open_spark = partial(session, paths, display, spark_options, brief=once and _is_small(paths))
        _persist(open_spark, work, totals, restarts=0 if once else RESTARTS)


def _check_masks(masks: Sequence[str]) -> None:
    """Refuse an invalid mask before Spark starts."""
    if masks:
        from penstock.pipeline.lake.masking import parse_mask

        for mask in masks:
            parse_mask(mask)


def _persist(
    open_spark: Callable[[], AbstractContextManager[SparkSession]],
    work: Callable[[SparkSession], None],
    totals: Mapping[str, int],
    restarts: int,
) -> None:
    """Restart Spark if its JVM was killed, at most `restarts` times without a finished step in between."""
    from penstock.pipeline.runtime.gateway import JavaEnded

    left, steps = restarts, totals["steps"]
    while True:
        try:
            with open_spark() as spark:
                work(spark)
            return
        except JavaEnded as error:
            left, steps = (restarts if totals["steps"] > steps else left) - 1, totals["steps"]
            if left < 0:
                raise
            note(f"{error}; restarting it")


def _metrics(file: Path | None, lake: Lake) -> MetricsFile:
    from penstock.pipeline.metrics import MetricsFile

    return MetricsFile(file, lake)


def _follow(
    pipeline: Pipeline,
    display: Display,
    totals: dict[str, int],
    drainer: Drainer,
    every: float | None,
    metrics: MetricsFile,
) -> None:
    with stop_on_signals() as stop:
        while not stop.is_set():
            catch_up(pipeline, display, totals, stop, metrics)
            display.doing("waiting")
            wait_for_more(pipeline, drainer, every, stop)


def _is_small(paths: PipelinePaths) -> bool:
    """Return True if there is so little to do that the JVM's optimising compiler would not pay off."""
    from penstock.pipeline.lake.lake import app_of
    from penstock.pipeline.lake.tables import BRONZE
    from penstock.pipeline.source.offset_ranges import is_small

    lake = paths.lake(existing=False)
    with closing(paths.journal.open()) as log:
        start = (lake[BRONZE].position(app_of(log.uid)) or 0) if lake.exists() else 0
        return is_small(log.segments(), start, log.next_offset)


def catch_up(
    pipeline: Pipeline, display: Display, totals: dict[str, int], stop: StopFlag, metrics: MetricsFile | None = None
) -> None:
    display.more(pipeline.log.next_offset - pipeline.position())
    for step in pipeline.steps():
        totals["events"] += step.events
        totals["steps"] += 1
        totals["lost"] += step.lost
        totals["dropped"] += step.dropped
        display.done(step.end - step.start, _rate(step))
        if metrics is not None:
            metrics.step(step)
        if stop.is_set():
            break
    totals["offset"] = pipeline.position()
    totals["lag"] = pipeline.log.next_offset - totals["offset"]
    if metrics is not None:
        metrics.write(totals["offset"], totals["lag"])


def _rate(step: Step) -> str:
    return f"{step.events / max(step.seconds, 0.001):,.0f} events/s, lag {step.lag:,}"


def wait_for_more(pipeline: Pipeline, drainer: Drainer, every: float | None, stop: StopFlag) -> None:
    if every is None:
        pipeline.log.wait(pipeline.position(), IDLE_SECONDS)
        if pipeline.lags():
            return  # A server drains the journal already; draining here as well would only slow it down.
    elif stop.wait(every):
        return
    drainer.drain()
