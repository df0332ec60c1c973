"""Copies of lake tables in PostgreSQL show the same rows as the lake, also after changes and interruptions."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import Result

from penstock.errors import Conflict, InvalidInput, StoreError
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER, Table
from penstock.pipeline.publish import DEFAULT_SCHEMA, Publisher, _values
from penstock.pipeline.run import Pipeline
from tests.postgres import cluster, drop_schema
from tests.spark.support import Work

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
PUBLISHED = (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)
Fill = Callable[[int], None]


@pytest.fixture
def database() -> Iterator[str]:
    drop_schema(DEFAULT_SCHEMA)
    yield cluster().url
    drop_schema(DEFAULT_SCHEMA)


@pytest.fixture
def fill(spark: Any, work: Work, lake: Lake) -> Fill:
    def run(seed: int) -> None:
        work.some(120, seed)
        with Pipeline(spark, work.drained(), lake) as pipeline:
            list(pipeline.steps())

    return run


def rows_of(table: LakeTable) -> list[str]:
    rows = table.refresh().dataset().to_table(columns=published_columns(table)).to_pylist()
    return comparable(tuple(row.values()) for row in rows)


def copied(url: str, table: LakeTable) -> list[str]:
    names = ", ".join(f'"{name}"' for name in published_columns(table))
    with psycopg.connect(url) as connection:
        return comparable(connection.execute(f"SELECT {names} FROM {copy_of(table)}").fetchall())


def copy_of(table: LakeTable) -> str:
    return f"{DEFAULT_SCHEMA}.{table.table.name.replace('.', '_')}"


def published_columns(table: LakeTable) -> list[str]:
    return [field.name for field in table.table.schema if not pa.types.is_binary(field.type)]


def comparable(rows: Any) -> list[str]:
    """Return the rows as texts; times within JSON are left out, because they are texts there."""

    def of(value: Any) -> Any:
        if isinstance(value, list):
            return [sorted((name, part) for name, part in each.items() if name != "at") for each in value]
        return value.timestamp() if hasattr(value, "timestamp") else value

    return sorted(repr([of(value) for value in row]) for row in rows)


def test_copies_follow_the_lake(database: str, lake: Lake, fill: Fill) -> None:
    with Publisher(database) as publisher:
        for seed in range(3):
            fill(seed)
            for table in PUBLISHED:
                assert publisher.publish(lake[table]).whole is (seed == 0)
                assert copied(database, lake[table]) == rows_of(lake[table]) != []
        again = publisher.publish(lake[QUEUES])
        assert (again.deleted, again.inserted, again.whole) == (0, 0, False)


def test_a_table_whose_old_files_are_gone_is_copied_as_a_whole(database: str, lake: Lake, fill: Fill) -> None:
    with Publisher(database) as publisher:
        fill(1)
        publisher.publish(lake[SILVER])
        fill(2)
        lake[SILVER].compact()
        assert not publisher.publish(lake[SILVER]).whole
        fill(3)
        lake[SILVER].compact()
        lake[SILVER].vacuum(0)
        assert publisher.publish(lake[SILVER]).whole
        assert copied(database, lake[SILVER]) == rows_of(lake[SILVER])


def test_an_interrupted_copy_changes_nothing(
    database: str, lake: Lake, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(1)
    with Publisher(database) as publisher:
        publisher.publish(lake[QUEUES])
        before = copied(database, lake[QUEUES])
        fill(2)
        with monkeypatch.context() as patch:
            patch.setattr(
                "penstock.pipeline.publish._SET_VERSION", "SELECT 1 / (%s = '')::int FROM {} WHERE %s <> %s OR %s = ''"
            )
            with pytest.raises(StoreError):
                publisher.publish(lake[QUEUES])
        assert copied(database, lake[QUEUES]) == before
        publisher.publish(lake[QUEUES])
        assert copied(database, lake[QUEUES]) == rows_of(lake[QUEUES]) != before


def test_a_restored_lake_is_copied_as_a_whole_although_its_versions_have_the_same_numbers(
    database: str, lake: Lake, fill: Fill, tmp_path: Path
) -> None:
    fill(1)
    folder = Path(str(lake[SILVER].folder))
    shutil.copytree(folder, tmp_path / "backup")
    lake[SILVER].delta.delete("total_ms > 100")
    with Publisher(database) as publisher:
        shown = publisher.publish(lake[SILVER]).version
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        restored = Lake(lake.folder)[SILVER]
        restored.delta.delete("total_ms > 50000")
        again = publisher.publish(restored)
        assert (again.version, again.whole) == (shown, True)
        assert copied(database, restored) == rows_of(restored) != []


def test_a_reader_does_not_block_a_copy(database: str, lake: Lake, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.publish.BUSY_MS", 1_000)
    fill(1)
    with Publisher(database) as publisher, psycopg.connect(database) as reader:
        publisher.publish(lake[QUEUES])
        before = copied(database, lake[QUEUES])
        reader.execute(f"SELECT FROM {copy_of(lake[QUEUES])}")
        fill(2)
        publisher.publish(lake[QUEUES])
        assert copied(database, lake[QUEUES]) == rows_of(lake[QUEUES]) != before


def test_a_column_of_a_later_release_is_added(database: str, lake: Lake, fill: Fill) -> None:
    fill(1)
    with Publisher(database) as publisher, psycopg.connect(database, autocommit=True) as connection:
        publisher.publish(lake[QUEUES])
        connection.execute(f"ALTER TABLE {copy_of(lake[QUEUES])} DROP COLUMN acked")
        publisher.publish(lake[QUEUES])
        connection.execute(f"SELECT acked FROM {copy_of(lake[QUEUES])}")


def test_tables_may_be_copied_at_the_same_time(database: str, lake: Lake, fill: Fill) -> None:
    fill(1)

    def publish(table: Table) -> str:
        with Publisher(database) as publisher:
            return publisher.publish(Lake(lake.folder)[table]).table

    with ThreadPoolExecutor() as pool:
        assert len(list(pool.map(publish, PUBLISHED * 2))) == 2 * len(PUBLISHED)
    assert copied(database, lake[SILVER]) == rows_of(lake[SILVER])


def test_text_without_nul_is_copied_unchanged() -> None:
    texts = pa.array([["\\u0000 \\\\u0000", "a\0b\\\0"]])
    assert [json.loads(text) for text in _values(texts)] == [["\\u0000 \\\\u0000", "a\ufffdb\\\ufffd"]]


def test_the_grafana_dashboard_queries_the_copies(database: str, lake: Lake, fill: Fill) -> None:
    fill(1)
    with Publisher(database) as publisher, psycopg.connect(database) as connection:
        for table in (QUEUES, QUEUE_MINUTES, QUEUE_ERRORS):
            publisher.publish(lake[table])
        for panel in json.loads((ROOT / "deploy" / "grafana-lake.json").read_text("utf-8"))["panels"]:
            query = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 < now()", panel["targets"][0]["rawSql"])
            query = query.replace("${queue:sqlstring}", "'mail', 'q'")
            assert connection.execute(query).fetchall(), panel["title"]


def test_another_lake_is_refused(database: str, lake: Lake, fill: Fill, tmp_path: Path) -> None:
    fill(1)
    other = Lake(tmp_path / "other")
    other.create()
    with Publisher(database) as publisher:
        publisher.publish(lake[QUEUES])
        with pytest.raises(Conflict, match="copy of another lake's table"):
            publisher.publish(other[QUEUES])


def test_the_command_copies_gold_or_what_is_named(
    database: str, work: Work, fill: Fill, command: Callable[..., Result]
) -> None:
    fill(1)
    done = command("publish", "--data", work.where, "--to", database, "--json")
    assert [row["table"] for row in json.loads(done.stdout)] == ["gold_queues", "gold_queue_minutes", "gold_errors"]
    done = command("publish", "--data", work.where, "--to", database, "--table", "silver.messages", "--json")
    assert [row["whole"] for row in json.loads(done.stdout)] == [True]
    with pytest.raises(InvalidInput, match="not a PostgreSQL URL"):
        Publisher("mysql://here/db")
