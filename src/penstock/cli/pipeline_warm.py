"""`penstock pipeline warm`"""

from __future__ import annotations

from importlib.util import find_spec

import click

from penstock.cli.common import JSON, reporting
from penstock.cli.output import Output, note
from penstock.cli.pipeline import MEMORY
from penstock.cli.pipeline_progress import Display
from penstock.errors import CannotOpen

MINUTES_MAX = 7 * 24 * 60


@click.command("warm")
@click.option("--minutes", type=click.FloatRange(0, MINUTES_MAX, min_open=True), default=30.0, show_default=True)
@click.option("--stop", is_flag=True, help="Stop the JVM.")
@MEMORY
@JSON
def warm(minutes: float, stop: bool, as_json: bool, memory: str) -> None:
    """Keep a Spark JVM running for your next sql, run --once, replay and load, until idle for --minutes.

    JSON: {"running", "pid", "memory", "minutes"}
    """
    with reporting():
        if find_spec("pyspark") is None:
            raise CannotOpen("the pipeline is not installed", hint="pip install 'penstock-mq[spark]'")
        from penstock.pipeline.runtime.warm_jvm import start_warm_jvm, stop_warm_jvm

        out = Output(as_json)
        if stop:
            if not stop_warm_jvm():
                note("no JVM was running")
            out.show({"running": False}, lambda: None)
            return
        with Display("warm") as display:
            display.doing("starting Spark and warming it up")
            found = start_warm_jvm(minutes, memory)
        status = {"running": True, "pid": found.pid, "memory": found.memory, "minutes": found.minutes}
        out.show(status, lambda: out.fields(status))
