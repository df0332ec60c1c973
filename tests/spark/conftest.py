"""One Spark session for the suite, because starting one takes longer than most tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from penstock.cli import (
    pipeline,
    pipeline_forget,
    pipeline_model,
    pipeline_replay,
    pipeline_run,
    pipeline_sql,
    pipeline_tables,
)
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import RemoteFolder
from penstock.pipeline.runtime.session import open_session
from tests.object_store import BUCKET, ObjectStore
from tests.spark.support import OLD_SPARK, Work
from tools import jar


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="session")
def spark(spark_log: Path) -> Iterator[Any]:
    settings = {"spark.sql.shuffle.partitions": "1"}
    if OLD_SPARK:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.sql.session.timeZone", "UTC").config(map=settings).getOrCreate()
    else:
        jar.build()
        session = open_session(spark_log, master="local[2]", brief=True, settings=settings)
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


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    started = ObjectStore(tmp_path_factory.mktemp("s3"))
    yield started
    started.kill()


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> RemoteFolder:
    """An empty folder of an S3 server that this process finds by its environment."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return RemoteFolder(f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture
def remote_lake(spark: Any, object_store: ObjectStore, bucket: RemoteFolder) -> Lake:
    """A lake on S3, which Spark's Python workers find as well. Its Java has no connector."""
    spark.sparkContext.environment.update(object_store.environment)
    return Lake(bucket)


@pytest.fixture
def command(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `penstock pipeline …` in this process, on the suite's own session, in an empty folder."""

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[Any]:
        yield spark

    for module in (pipeline_forget, pipeline_model, pipeline_replay, pipeline_run, pipeline_sql, pipeline_tables):
        monkeypatch.setattr(module, "session", session)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(pipeline.command, arguments)
