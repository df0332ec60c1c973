"""The source in SQL: temporary views, and the comments on its columns."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.pipeline.source.columns import JOURNAL, STREAM
from penstock.pipeline.source.log_sources import schema_of
from tests.spark.support import Work, register

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    register(spark)


def test_a_temporary_view_shows_what_is_there_now(spark: Any, work: Work) -> None:
    work.push("a", "b")
    work.drained()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING penstock OPTIONS (url '{work.where}')")
    pushed = "SELECT cast(body AS string) FROM events WHERE kind = 'pushed' ORDER BY 1"
    assert [row[0] for row in spark.sql(pushed).collect()] == ["a", "b"]
    work.push("c")
    work.drained()
    assert [row[0] for row in spark.sql(pushed).collect()] == ["a", "b", "c"]
    spark.catalog.dropTempView("events")


def test_every_column_has_a_comment(spark: Any, work: Work) -> None:
    work.push("a")
    work.drained()
    assert list(JOURNAL) == schema_of(None).names
    assert list(STREAM) == schema_of("s").names
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING penstock OPTIONS (url '{work.where}')")
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE events").collect()}
    assert described == JOURNAL
    spark.catalog.dropTempView("events")


def test_a_table_that_would_lose_its_options_is_refused_with_what_works(spark: Any, work: Work) -> None:
    with pytest.raises(PySparkException, match=r"(?s)CREATE TABLE is not supported.*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE events USING penstock OPTIONS (url '{work.where}')")
