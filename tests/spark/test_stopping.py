"""Commands that are asked to stop end soon and quietly, and leave nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkConf

from penstock import CannotOpen, LiteQueue
from penstock.cli.pipeline_run import wait_for_more
from penstock.core.signals import StopFlag
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.run import Pipeline
from penstock.pipeline.runtime.gateway import start_java
from penstock.pipeline.source.journal_sync import drainer_of
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.support import Work

pytestmark = pytest.mark.spark

ENDLESS = "SELECT count(*) FROM range(1e9) a CROSS JOIN range(1e9) b"
PATIENCE_SECONDS = 180
FIRST_LINE = "Spark log: "


@contextmanager
def typed(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [PENSTOCK, "pipeline", *arguments, "--json", "--master", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(done: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := done()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def java_of(process: subprocess.Popen[str]) -> psutil.Process | None:
    with suppress(psutil.Error):  # Of one that has just ended.
        children = psutil.Process(process.pid).children(recursive=True)
        return next((child for child in children if "SparkSubmit" in " ".join(child.cmdline())), None)
    return None


def has_tasks(java: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        names = [Path("/proc", str(java.pid), "task", str(each.id), "comm").read_text() for each in java.threads()]
        return any(name.startswith("Executor task") for name in names)
    return False


def test_a_command_interrupted_while_spark_starts_leaves_no_java(work: Work, lake: Lake) -> None:
    lake.create()
    with typed("sql", "SELECT 1", "--data", str(work.data)) as process:
        java = wait_until(lambda: java_of(process), process)
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1].strip() == ""
        assert process.returncode == 130
        java.wait(PATIENCE_SECONDS)


def test_a_question_that_takes_too_long_can_be_interrupted(work: Work, lake: Lake) -> None:
    lake.create()
    with typed("sql", ENDLESS, "--data", str(work.data)) as process:
        java = wait_until(lambda: java_of(process), process)
        wait_until(lambda: has_tasks(java), process)
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1].strip() == ""
        assert process.returncode == 130
        java.wait(PATIENCE_SECONDS)


def test_a_continuous_run_finds_what_nobody_drained_and_ends_when_asked(tmp_path: Path) -> None:
    database, lake = tmp_path / "tasks.db", Lake(tmp_path / "lake")

    def rows() -> int:
        return lake[BRONZE].refresh().size("").rows if lake.exists() else 0

    with LiteQueue(str(database), journal=True) as queue:
        queue.put(b"first")
        with typed("run", "--continuous", "--db", str(database)) as process:
            before = wait_until(rows, process)
            queue.put(b"second")
            wait_until(lambda: rows() > before, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["events"] == rows() > 2
    [line] = err.splitlines()
    assert line.startswith(FIRST_LINE)


def test_a_run_goes_on_with_another_java_when_its_own_is_killed(tmp_path: Path) -> None:
    database, lake = tmp_path / "tasks.db", Lake(tmp_path / "lake")

    def rows() -> int:
        return lake[BRONZE].refresh().size("").rows if lake.exists() else 0

    with LiteQueue(str(database), journal=True) as queue:
        queue.put(b"first")
        with typed("run", "--every", "100ms", "--db", str(database)) as process:
            before = wait_until(rows, process)
            java = wait_until(lambda: java_of(process), process)
            java.kill()
            queue.put(b"second")
            wait_until(lambda: rows() > before, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["lag"] == 0
    first, again = err.splitlines()
    assert first.startswith(FIRST_LINE)
    assert again.startswith("the Spark JVM exited")
    assert again.endswith("restarting it")


class Counting:
    """A drainer that counts what is asked of it."""

    def __init__(self, work: Work) -> None:
        self._drainer = drainer_of(None, work.path)
        self.times = 0

    def drain(self) -> None:
        self.times += 1
        self._drainer.drain()

    def close(self) -> None:
        self._drainer.close()


def test_what_a_server_drains_is_left_to_it(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    with closing(Counting(work)) as drainer, Pipeline(spark, work.drained(), lake) as pipeline:
        wait_for_more(pipeline, drainer, None, StopFlag())
        assert drainer.times == 0
        assert len(list(pipeline.steps())) == 1
        work.push("b")
        wait_for_more(pipeline, drainer, None, StopFlag())
        assert drainer.times == 1
        assert pipeline.lags()


def test_a_java_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(CannotOpen, match="cannot start Spark") as caught:
        start_java(SparkConf(loadDefaults=False).set("spark.driver.memory", "1x"), log)
    assert str(log) in str(caught.value.hint)
