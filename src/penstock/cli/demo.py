"""`penstock demo`: a server with traffic through every API."""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.common import reporting
from penstock.cli.output import note
from penstock.cli.pipeline_progress import Display
from penstock.config import Settings
from penstock.core.signals import StopFlag, stop_on_signals
from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from penstock.demo.run import Refreshing


@click.command("demo")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8888, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--data", type=click.Path(file_okay=False), help="Folder for the data.  [default: a temporary one]")
@click.option("--spark/--no-spark", default=None, help="Draw charts with Spark.  [default: if it is installed]")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this time.  [default: at Ctrl-C]")
@click.option(
    "--pace",
    type=click.FloatRange(0.001, 100),
    default=1.0,
    show_default=True,
    help="Pause between messages; smaller is busier.",
)
@click.option("--browser/--no-browser", default=True, help="Open the dashboard.  [default: yes, on a terminal]")
def command(port: int, data: str | None, spark: bool | None, seconds: float | None, pace: float, browser: bool) -> None:
    """Start a demo shop with traffic through every API, a dashboard, and charts by Spark.

    It has orders in a namespace, emails that fail and are retried, scheduled reminders, notes in an inbox, and a
    stream with a fast and a slow consumer.
    """
    from penstock.demo.run import demo, has_spark

    spark = has_spark() if spark is None else spark
    with reporting(), ExitStack() as stack:
        if spark and not has_spark():
            raise MissingExtra("spark")
        folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-"))
        stop = stack.enter_context(stop_on_signals())
        if seconds is not None:
            timer = threading.Timer(seconds, stop.set)
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        settings = Settings(port=port, data=folder, access_log=False)
        server, shop, refreshing = stack.enter_context(demo(settings, spark=spark, pace=pace))
        note(f"dashboard: {server.page}")
        note(f"data: {folder}")
        if browser and sys.stderr.isatty():
            click.launch(server.page)
        if refreshing is not None:
            _follow(refreshing, stop)
        elif not spark:
            note("no charts: Spark is not installed (pip install 'penstock-mq[spark]')")
        stop.wait()
        note("stopping")
        counts = ", ".join(f"{count} {name}" for name, count in shop.done.items())
    note(f"done: {counts}" + (f"; {len(shop.errors)} errors, the last: {shop.errors[-1]}" if shop.errors else ""))


def _follow(refreshing: Refreshing, stop: StopFlag) -> None:
    """Print where the first chart is, then redraw it every few seconds until stopped."""
    from penstock.demo.run import REFRESH_SECONDS, await_first_chart

    with Display("charts") as display:
        seconds = await_first_chart(
            refreshing, stop, lambda passed: display.doing(f"waiting for Spark, {passed:.0f} s")
        )
    if seconds is None:
        return
    note(f"charts: {Path(refreshing.report).absolute().as_uri()} (the first after {seconds:.0f} s)")
    while not stop.wait(REFRESH_SECONDS):
        refreshing.draw()
