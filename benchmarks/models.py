"""Fill a typed model from millions of messages, of which one in a hundred does not fit, and check both tables exactly.

    make bench-models ARGS="--messages 10_000_000"

Bronze is written directly, as the pipeline would, so that only the model is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.lake.files import write_parts
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.models import manage
from penstock.pipeline.models.catalog import ModelTable, tables_of_model
from penstock.pipeline.models.definitions import Definitions
from penstock.pipeline.models.runner import ModelRunner
from penstock.pipeline.runtime.session import open_session

APP = "penstock:bench"
BATCH = 32 << 10
BAD = (b"{", b'{"id":"1","customer":"c1"}', b'{"customer":"c1"}', b'{"id":1,"customer":"c1","paid":"yes"}', b"[]")
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "paid": {"type": "boolean"},
        "placed_at": {"type": "string", "format": "date-time"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id", "customer"],
}


def bodies(first: int, count: int) -> pa.Array:
    numbers = np.arange(first, first + count)
    texts = pa.array(numbers).cast(pa.string())
    small = pa.array(numbers % 1000).cast(pa.string())
    good = pc.binary_join_element_wise(
        '{"id":', texts, ',"customer":"c', small, '","amount":', small,
        '.25,"paid":true,"placed_at":"2026-01-31T12:00:00Z","address":{"city":"Bern","zip":', small,
        '},"tags":["a","b"]}', "",
    ).cast(pa.binary())  # fmt: skip
    bad = pa.array(BAD, pa.binary()).take(pa.array(numbers // 100 % len(BAD)))
    return pc.if_else(pa.array(numbers % 100 == 99), bad, good)


def batches(part: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    for first in range(*part, BATCH):
        count = min(BATCH, part[1] - first)
        numbers = pa.array(np.arange(first, first + count))
        times = pc.add(numbers, 1_767_225_600_000_000).cast(BRONZE.schema.field("at").type)
        given: dict[str, Any] = {
            "offset": numbers,
            "number": pa.array(np.zeros(count, np.int32)),
            "at": times,
            "pushed_at": times,
            "kind": pa.repeat("pushed", count),
            "queue": pa.repeat("orders", count),
            "id": numbers,
            "uuid": pa.repeat("019b0000-0000-7000-8000-000000000000", count),
            "body": bodies(first, count),
        }
        columns = [given.get(field.name, pa.nulls(count, field.type)) for field in BRONZE.schema]
        yield pa.RecordBatch.from_arrays(columns, schema=BRONZE.schema)


def timed(what: str, count: int, run: Callable[[], None]) -> None:
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    print(f"{what}: {seconds:.1f} s, {count / seconds:,.0f} messages/s", flush=True)


def check(good: ModelTable, bad: ModelTable, count: int) -> None:
    """Compare with what the bodies say: every hundredth is bad, and no other."""
    rejected = bad.refresh().dataset().to_table(columns=["offset", "body"]).sort_by("offset")
    expected = np.arange(99, count, 100)
    assert np.array_equal(rejected["offset"].to_numpy(), expected), "other messages are in quarantine"
    wanted = pa.array(BAD, pa.binary()).take(pa.array(expected // 100 % len(BAD)))
    assert pc.all(pc.equal(rejected["body"].combine_chunks(), wanted)).as_py()
    typed = good.refresh().dataset().to_table(columns=["offset", "payload_id", "amount"]).sort_by("offset")
    kept = np.setdiff1d(np.arange(count), expected)
    assert np.array_equal(typed["offset"].to_numpy(), kept)
    assert np.array_equal(typed["payload_id"].to_numpy(), kept)
    assert np.array_equal(typed["amount"].to_numpy(), kept % 1000 + 0.25)
    print(f"exact: {typed.num_rows:,} rows, {rejected.num_rows:,} in quarantine", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--master", default="local[*]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-models-") as folder:
        spark = open_session(Path(folder, "spark.log"), master=given.master)
        lake = Lake(Path(folder, "lake"))
        lake.create()
        count, step = given.messages, given.messages // 10

        def add_bronze(first: int, end: int) -> None:
            parts = [(start, min(start + 250_000, end)) for start in range(first, end, 250_000)]
            lake[BRONZE].append(write_parts(spark, parts, batches, lake[BRONZE].folder, BRONZE), APP, end)

        def events(start: int, end: int) -> Any:
            found = lake[BRONZE].read(spark, offset=start)
            return found.where((found["offset"] >= start) & (found["offset"] < end))

        def fill(end: int) -> None:
            runner = ModelRunner(spark, lake, APP)
            runner.refresh()
            runner.run(events, end, False, lambda what: None)

        timed("bronze", count, lambda: add_bronze(0, count))
        manage.add(lake, APP, "orders", "orders", SCHEMA)
        timed("model, all at once", count, lambda: fill(count))
        check(*tables_of_model(lake, Definitions(lake).get("orders")), count)
        add_bronze(count, count + step)
        timed("model, the next tenth", step, lambda: fill(count + step))
        check(*tables_of_model(lake, Definitions(lake).get("orders")), count + step)
        manage.new_generation(lake, "orders")
        timed("model, rebuilt", count + step, lambda: fill(count + step))
        check(*tables_of_model(lake, Definitions(lake).get("orders")), count + step)
        spark.stop()


if __name__ == "__main__":
    main()
