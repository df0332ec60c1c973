"""What Penstock's Spark session adds to a plain one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock import CannotOpen
from penstock.cli.pipeline import _was_interrupted
from penstock.pipeline.runtime.session import _interrupt_handler, open_session
from tests.spark.strangers import DESERIALISED, REFUSED, answers_to_a_stranger

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 60


def test_a_python_worker_that_dies_does_not_end_a_local_run(spark: Any, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def once_dying(batches: Iterator[Any]) -> Iterator[Any]:
        if not died.exists():
            died.touch()
            os._exit(1)
        yield from batches

    assert spark.range(100).mapInArrow(once_dying, "id long").count() == 100
    assert died.exists()


def test_spark_reads_no_object_of_a_user_without_its_secret(spark: Any) -> None:
    answers = answers_to_a_stranger(spark.sparkContext._gateway.proc.pid)
    assert [port for port, answer in answers.items() if DESERIALISED in answer] == []
    assert any(REFUSED in answer for answer in answers.values())


def endless_source() -> type[DataSource]:
    """Says when it is planned, waits to go on, and is then read for ever. Made here, it travels by value."""

    class Reader(DataSourceReader):
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def partitions(self) -> list[InputPartition]:
            (self.folder / "planned").touch()
            while not (self.folder / "go on").exists():
                time.sleep(0.02)
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            while True:
                time.sleep(0.02)
                yield (1,)

    class Endless(DataSource):
        @classmethod
        def name(cls) -> str:
            return "endless"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(Path(self.options["folder"]))

    return Endless


def test_an_interrupt_before_its_job_begins_ends_a_question(spark: Any, tmp_path: Path) -> None:
    """Sent while Spark still plans: there is no job to cancel yet."""
    spark.dataSource.register(endless_source())
    too_late: list[bool] = []
    cancelled, over = threading.Event(), threading.Event()

    class Context:
        """Spark's, and says when all jobs that there were are cancelled."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark.sparkContext, name)

        def cancelAllJobs(self) -> None:
            spark.sparkContext.cancelAllJobs()
            cancelled.set()

    context: Any = Context()

    def interrupt() -> None:
        while not (tmp_path / "planned").exists():
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        cancelled.wait(PATIENCE_SECONDS)
        (tmp_path / "go on").touch()  # Its job begins only now.
        if not over.wait(PATIENCE_SECONDS):
            too_late.append(True)
            spark.sparkContext.cancelAllJobs()

    before = signal.signal(signal.SIGINT, _interrupt_handler(context))
    thread = threading.Thread(target=interrupt)
    try:
        frame = spark.read.format("endless").option("folder", str(tmp_path)).load()
        thread.start()
        with pytest.raises(BaseException) as error:  # PySpark may raise another on the way.
            frame.toArrow()
        over.set()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert _was_interrupted(error.value)
    assert not too_late
    for _ in range(10):  # Nothing asked for later is cancelled.
        assert spark.range(3).count() == 3


@pytest.mark.parametrize("given", [None, "/opt/other/python3"])
def test_a_python_for_workers_that_was_chosen_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    with pytest.raises(CannotOpen, match="cannot start Spark"):
        open_session(tmp_path / "spark.log", memory="1x")
    assert os.environ["PYSPARK_PYTHON"] == (given or sys.executable)


def test_a_spark_that_is_too_old_for_the_pipeline_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(CannotOpen, match=r"PySpark 4\.1\.4 is too old: the pipeline needs 4\.2"):
        open_session(tmp_path / "spark.log")
