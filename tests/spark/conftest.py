"""One Spark session for the suite, because starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import pipeline, pipeline_forget, pipeline_replay, pipeline_run, pipeline_sql, pipeline_tables
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.runtime.session import open_session
from tests.spark.support import Work
from tools import jar


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="session")
def spark(spark_log: Path) -> Iterator[Any]:
    jar.build()
    session = open_session(spark_log, master="local[2]", brief=True, settings={"spark.sql.shuffle.partitions": "1"})
    yield session
    session.stop()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    under_test = Work(tmp_path / "data")
    yield under_test
    under_test.close_all()


@pytest.fixture
def lake(work: Work) -> Lake:
    return Lake(work.data / "lake")


@pytest.fixture
def command(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `penstock pipeline …` in this process, on the suite's own session, in an empty folder."""

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[Any]:
        yield spark

    for module in (pipeline_forget, pipeline_replay, pipeline_run, pipeline_sql, pipeline_tables):
        monkeypatch.setattr(module, "session", session)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(pipeline.command, arguments)
