"""`penstock pipeline run`"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import TYPE_CHECKING

import click

from penstock.cli.output import Output, note
from penstock.cli.pipeline import PipelinePaths, SparkOptions, on_spark, session
from penstock.cli.pipeline_progress import Display
from penstock.core.signals import StopFlag, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.run import Pipeline, Step
    from penstock.pipeline.source.journal_sync import Drainer

IDLE_SECONDS = 1.0
RESTARTS = 3
"""Of Spark's Java, one after another, until a step is finished."""


class Every(click.ParamType[float]):
    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|min|h)?", str(value))
        if not found:
            self.fail(f"{value!r} is not a time such as 500ms, 10s or 5min", param, ctx)
        seconds = float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[found[2] or "s"]
        if not 0 < seconds <= 86_400:
            self.fail("it is above 0 and at most a day", param, ctx)
        return seconds


@click.command("run")
@click.option("--once", "mode", flag_value="once", default="once", help="What is there now, then end.  [default]")
@click.option("--every", type=Every(), help="Again after this time, for ever.")
@click.option("--continuous", "mode", flag_value="continuous", help="As soon as something happened, for ever.")
@click.option("--fail-on-data-loss/--no-fail-on-data-loss", default=True, help="If the journal was trimmed too soon.")
@on_spark
def run(
    places: PipelinePaths,
    mode: str,
    every: float | None,
    fail_on_data_loss: bool,
    as_json: bool,
    spark_options: SparkOptions,
) -> None:
    """Bring the lake up to date with the journal.

    It may be killed at any time: the next run goes on where the tables end. With --every and --continuous, Ctrl-C or
    SIGTERM lets it finish the step at hand, and Spark is started again if its Java is killed.

    JSON: {"events", "steps", "offset", "lag", "lost", "seconds"}
    """
    out = Output(as_json)
    began = time.monotonic()
    told = {"events": 0, "steps": 0, "offset": 0, "lag": 0, "lost": 0}
    once = mode == "once" and every is None
    with Display("pipeline") as display, closing(places.drainer()) as drainer:
        if not sys.stderr.isatty():  # There it is told anyway.
            note(f"Spark's own log: {places.log}")
        drainer.drain()

        def work(spark: SparkSession) -> None:
            from penstock.pipeline.run import Pipeline

            lake = places.lake(existing=False)
            with Pipeline(
                spark, places.journal, lake, fail_on_data_loss=fail_on_data_loss, doing=display.doing
            ) as pipeline:
                if once:
                    _catch_up(pipeline, display, told, StopFlag())
                else:
                    _follow(pipeline, display, told, drainer, every)
            display.clear()
            told["seconds"] = round(time.monotonic() - began, 1)  # type: ignore[assignment]
            if told["offset"] == 0:
                note("the journal is empty; a file that LiteQueue made has one only with journal=True")
            out.show(told, lambda: out.fields(told))  # Spark takes its time to stop.

        open_spark = partial(session, places, display, spark_options, brief=once and _is_little(places))
        _persist(open_spark, work, told, restarts=0 if once else RESTARTS)


def _persist(
    open_spark: Callable[[], AbstractContextManager[SparkSession]],
    work: Callable[[SparkSession], None],
    told: Mapping[str, int],
    restarts: int,
) -> None:
    """Start Spark again if its Java was killed, but not for ever where no step is finished in between."""
    from penstock.pipeline.runtime.gateway import JavaEnded

    left, steps = restarts, told["steps"]
    while True:
        try:
            with open_spark() as spark:
                work(spark)
            return
        except JavaEnded as error:
            left, steps = (restarts if told["steps"] > steps else left) - 1, told["steps"]
            if left < 0:
                raise
            note(f"{error}; starting it again")


def _follow(pipeline: Pipeline, display: Display, told: dict[str, int], drainer: Drainer, every: float | None) -> None:
    with stop_on_signals() as stop:
        while not stop.told:
            _catch_up(pipeline, display, told, stop)
            display.doing("waiting")
            wait_for_more(pipeline, drainer, every, stop)


def _is_little(places: PipelinePaths) -> bool:
    """Is it done before a Java that compiles everything twice would be faster?"""
    from penstock.pipeline.lake.lake import app_of
    from penstock.pipeline.lake.tables import BRONZE
    from penstock.pipeline.source.offset_ranges import is_small

    lake = places.lake(existing=False)
    with closing(places.journal.open()) as log:
        start = (lake[BRONZE].position(app_of(log.uid)) or 0) if lake.exists() else 0
        return is_small(log.segments(), start, log.next_offset)


def _catch_up(pipeline: Pipeline, display: Display, told: dict[str, int], stop: StopFlag) -> None:
    display.more(pipeline.log.next_offset - pipeline.position())
    for step in pipeline.steps():
        told["events"] += step.events
        told["steps"] += 1
        told["lost"] += step.lost
        display.done(step.end - step.start, _rate(step))
        if stop.told:
            break
    told["offset"] = pipeline.position()
    told["lag"] = pipeline.log.next_offset - told["offset"]


def _rate(step: Step) -> str:
    return f"{step.events / max(step.seconds, 0.001):,.0f} events/s, lag {step.lag:,}"


def wait_for_more(pipeline: Pipeline, drainer: Drainer, every: float | None, stop: StopFlag) -> None:
    if every is None:
        pipeline.log.wait(pipeline.position(), IDLE_SECONDS)
        if pipeline.lags():
            return  # Somebody drains the journal. To do it, too, would hold up the server.
    elif stop.wait(every):
        return
    drainer.drain()
