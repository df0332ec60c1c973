"""Masks, retention and deletion in lakes with models, and in lakes on S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.model import Content
from penstock.errors import Conflict
from penstock.pipeline.forget import Forgetting
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import RemoteFolder, files_in, read_object
from penstock.pipeline.lake.tables import BRONZE, QUEUE_MINUTES, SILVER, Table
from penstock.pipeline.models import manage
from penstock.pipeline.retention import apply_retention, retain, trimmed_before
from penstock.pipeline.run import Pipeline
from penstock.pipeline.verify import verify
from tests.spark.models import ORDERS, add, push, rows, write
from tests.spark.models import run as run_models
from tests.spark.support import Work, rows_of

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
MARKER = "ada.lovelace@example.com"
ORDER = json.dumps({"id": 1, "customer": MARKER}).encode()
REJECTED = json.dumps({"customer": MARKER}).encode()
GOOD = b'{"id":2,"customer":"bob"}'


def run(spark: Any, work: Work, lake: Lake, **how: Any) -> str:
    with Pipeline(spark, work.drained(), lake, **how) as pipeline:
        list(pipeline.steps())
        return pipeline.app


def wrong_tables(spark: Any, lake: Lake) -> list[str]:
    """The tables that are not what bronze adds up to."""
    return [verdict.table for verdict in verify(spark, Lake(lake.folder)) if not verdict.good]


def now_of(work: Work, **later: float) -> datetime:
    return datetime.fromtimestamp(work.clock() / 1000, UTC) + timedelta(**later)


def contents(lake: Lake) -> Iterator[tuple[str, bytes]]:
    for name in files_in(lake.folder):
        if isinstance(lake.folder, RemoteFolder):
            yield name, read_object(lake.folder, name) or b""
        else:
            yield name, (lake.folder / name).read_bytes()


def files_with(lake: Lake, text: str) -> list[str]:
    """The files of a lake that have a text in their bytes or, in Parquet, in any decoded value or statistics."""
    found = []
    for name, content in contents(lake):
        shown = ""
        if name.endswith(".parquet"):
            with pq.ParquetFile(pa.BufferReader(content)) as file:
                shown = str(file.read().to_pylist()) + str(file.metadata.to_dict())
        if text.encode() in content or text in shown:
            found.append(name)
    return found


@pytest.fixture(params=["local", "s3"])
def any_lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue("lake" if request.param == "local" else "remote_lake")
    return found


def test_what_is_forgotten_is_in_no_file_of_any_table(spark: Any, work: Work, any_lake: Lake) -> None:
    lake = any_lake
    push(work, ORDER, REJECTED, GOOD)
    run(spark, work, lake)
    add(work, lake)
    add(work, lake, name="former")
    run(spark, work, lake)
    manage.remove(lake, "former")
    push(work, ORDER, GOOD)
    work.nack(*work.lease("orders", 2), error=f"cannot send to {MARKER}", delay_ms=0)
    run(spark, work, lake)
    # A task was killed before its file was committed, and a query before it removed what it had read.
    events = lake[BRONZE].batches_of(lake[BRONZE].sizes())
    list(write_batches(events, lake[BRONZE].folder, BRONZE))
    assert len(files_with(lake, MARKER)) > 5
    found = Forgetting(spark, lake, f"string(body) LIKE '%{MARKER}%'")
    counted = found.found()
    assert (counted.messages, counted.model_rows) == (3, 3)
    assert found.forget("tests") == counted
    assert files_with(lake, MARKER) == []
    there = Lake(lake.folder)
    assert [row["customer"] for row in rows(there, "orders")] == ["bob", "bob"]
    assert rows(there, "orders", 1) == []
    assert wrong_tables(spark, lake) == []
    push(work, GOOD)
    run(spark, work, there)
    assert len(rows(Lake(lake.folder), "orders")) == 3
    assert wrong_tables(spark, lake) == []


def test_compaction_and_retention_work_on_s3(spark: Any, work: Work, remote_lake: Lake) -> None:
    lake = remote_lake
    for day in range(3):
        work.some(60, seed=day)
        run(spark, work, lake)
        if day == 1:
            assert lake[BRONZE].compact() == {"removed": 0, "added": 0}  # Two days are not merged.
        work.clock.advance(DAY_MS)
    work.clock.advance(-DAY_MS)
    work.some(20, seed=7)
    app = run(spark, work, lake)
    before = rows_of(lake, BRONZE)
    assert lake[BRONZE].compact()["added"] >= 1
    assert rows_of(lake, BRONZE) == before
    retain(lake, {"bronze.bodies": DAY_MS, "bronze": 2 * DAY_MS})
    apply_retention(lake, app, now_of(work, hours=12))
    after = rows_of(Lake(lake.folder), BRONZE)
    limit = now_of(work, hours=12) - timedelta(days=1)
    assert 0 < len(after) < len(before)
    assert [row["body"] for row in after] == [
        row["body"] if row["at"] >= limit else None for row in before[-len(after) :]
    ]
    assert wrong_tables(spark, lake) == []


@pytest.mark.parametrize("table", [SILVER, QUEUE_MINUTES], ids=lambda table: table.name)
def test_of_two_compactions_at_once_one_gives_way(bucket: RemoteFolder, table: Table) -> None:
    lake = Lake(bucket)
    lake.create()
    nothing = dict.fromkeys(table.schema.names)
    for number in range(3):
        row = pa.RecordBatch.from_pylist([nothing | {"queue": f"q{number}"}], table.schema)
        lake[table].append(list(write_batches([row], lake[table].folder, table)), "penstock:a", number + 1)
    slower = Lake(bucket)[table].refresh()
    assert len(slower.sizes()) == 3
    assert lake[table].compact() == {"removed": 3, "added": 1}
    assert slower.compact() == {"removed": 0, "added": 0}
    assert sorted(row["queue"] for row in rows_of(Lake(bucket), table)) == ["q0", "q1", "q2"]
    assert slower.compact() == {"removed": 0, "added": 0}


def test_retention_keeps_what_a_model_has_not_read(spark: Any, work: Work, lake: Lake) -> None:
    push(work, GOOD)
    app = run(spark, work, lake)
    add(work, lake)
    retain(lake, {"bronze": DAY_MS, "silver": DAY_MS, "gold.errors": DAY_MS})
    later = now_of(work, days=9)
    assert [each.files for each in apply_retention(lake, app, later)] == [0, 0, 0]
    run(spark, work, lake)
    assert len(rows(lake, "orders")) == 1
    apply_retention(lake, app, later)
    assert rows_of(lake, BRONZE) == []
    assert trimmed_before(lake[BRONZE]) is not None
    assert len(rows(Lake(lake.folder), "orders")) == 1
    assert wrong_tables(spark, lake) == []


def test_verify_accepts_models_whose_bodies_retention_has_dropped(spark: Any, work: Work, lake: Lake) -> None:
    push(work, GOOD)
    run(spark, work, lake)
    add(work, lake)
    work.clock.advance(9 * DAY_MS)
    push(work, GOOD, REJECTED)
    app = run(spark, work, lake)
    retain(lake, {"bronze.bodies": DAY_MS})
    apply_retention(lake, app, now_of(work))
    assert len(rows(lake, "orders")) == 2
    assert wrong_tables(spark, lake) == []


def test_a_message_that_only_a_model_still_has_is_found_by_its_uuid(spark: Any, work: Work, lake: Lake) -> None:
    push(work, ORDER, GOOD)
    run(spark, work, lake)
    add(work, lake)
    app = run(spark, work, lake)
    retain(lake, {"bronze": DAY_MS})
    apply_retention(lake, app, now_of(work, days=9))
    [row] = [row for row in rows(lake, "orders") if row["customer"] == MARKER]
    Forgetting(spark, lake, f"uuid = '{row['uuid']}'").forget("tests")
    assert files_with(lake, MARKER) == []
    assert [row["customer"] for row in rows(Lake(lake.folder), "orders")] == ["bob"]


def test_forget_is_refused_while_sql_models_exist(spark: Any, work: Work, lake: Lake, tmp_path: Path) -> None:
    push(work, ORDER)
    folder = write(tmp_path / "models", bodies="SELECT string(body) AS body FROM {{ source('bronze', 'events') }}")
    run_models(spark, work, lake, models=folder)
    with pytest.raises(Conflict, match="SQL models, such as 'bodies'") as refused:
        Forgetting(spark, lake, "queue = 'orders'")
    assert "pipeline model remove" in str(refused.value.hint)
    manage.remove(lake, "bodies")
    Forgetting(spark, lake, "queue = 'orders'").forget("tests")
    assert files_with(lake, MARKER) == []


def test_models_see_masked_values_only(spark: Any, work: Work, any_lake: Lake) -> None:
    lake = any_lake
    work.make("orders")
    work.push(ORDER.decode(), queue="orders", content=Content.JSON)
    run(spark, work, lake, masks=["$.customer"])
    add(work, lake, ORDERS)
    run(spark, work, lake)
    work.push(REJECTED.decode(), queue="orders", content=Content.JSON)
    run(spark, work, lake)
    assert [row["customer"] for row in rows(lake, "orders")] == ["***"]
    assert [row["body"] for row in rows(lake, "orders", 1)] == [b'{"customer":"***"}']
    assert files_with(lake, MARKER) == []
