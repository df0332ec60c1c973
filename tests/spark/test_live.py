"""`live.queues` and `live.messages`: the store's current content in SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Client, NewMessage, connect
from penstock.pipeline.lake import live_tables
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.live_tables import LiveTables
from penstock.pipeline.lake.tables import LIVE_MESSAGES, LIVE_QUEUES
from penstock.pipeline.sql import tables_for
from tests.integration.serving import running
from tests.postgres import cluster, drop_schema, new_schema

pytestmark = pytest.mark.spark
STATES = {"ready", "scheduled", "leased", "dead", "archived"}


@pytest.fixture(params=["file", "database", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"sqlite:///{tmp_path}/queues.db"
    elif request.param == "server":
        with running(tmp_path) as server:
            yield f"http://127.0.0.1:{server.port}"
    else:
        schema = new_schema()
        yield f"{cluster().url}&schema={schema}"
        drop_schema(schema)


def fill(client: Client) -> None:
    """One message in each state, and many that are ready."""
    queue = client.create_queue("mail", max_attempts=1, archive_ms=60_000)
    queue.push(b"\xff\x00", key="archived")
    queue.lease()[0].ack()
    queue.push("gone wrong")
    queue.lease()[0].nack(error="no such user")
    queue.push({"n": 1}, headers={"tenant": "ada"}, priority=7)
    queue.lease(lease=600)
    queue.push("later", delay=600)
    queue.push_many([NewMessage(payload=f"{number}") for number in range(25)])
    client.create_queue("shop/orders/new")


def rows(url: str | None, table: Any, file: Path) -> list[dict[str, Any]]:
    LiveTables(url).write(table, file)
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


def test_every_message_is_told_with_where_it_stands(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_tables, "PAGE", 10)
    with connect(url) as client:
        fill(client)
    found = rows(url, LIVE_MESSAGES, tmp_path / "messages.parquet")
    assert len({row["id"] for row in found}) == len(found) == 29
    by_state = {row["state"]: row for row in found}
    assert by_state.keys() == STATES
    assert (by_state["archived"]["body"], by_state["archived"]["key"]) == (b"\xff\x00", "archived")
    assert [each["error"] for each in by_state["dead"]["errors"]] == ["no such user"]
    assert by_state["dead"]["reason"] == "nacked"
    assert (by_state["leased"]["headers"], by_state["leased"]["priority"]) == ([("tenant", "ada")], 7)
    assert by_state["leased"]["leased_until"] > by_state["leased"]["leased_at"] >= by_state["leased"]["pushed_at"]
    assert by_state["scheduled"]["available_at"] > by_state["scheduled"]["pushed_at"]
    queues = rows(url, LIVE_QUEUES, tmp_path / "queues.parquet")
    assert [row["queue"] for row in queues] == ["mail", "shop/orders/new"]
    assert queues[0] == {"queue": "mail", "paused": False} | dict.fromkeys(STATES, 1) | {"ready": 25}


def test_messages_whose_lease_or_delay_has_ended_are_told_as_they_are(url: str, tmp_path: Path) -> None:
    with connect(url) as client:
        for queue, attempts in (("mail", 5), ("once", 1)):
            client.create_queue(queue, max_attempts=attempts).push("leased")
            client.queue(queue).lease(lease=0.05)
            client.queue(queue).push("delayed", delay=0.05)
    time.sleep(0.1)
    queues = {row["queue"]: row for row in rows(url, LIVE_QUEUES, tmp_path / "queues.parquet")}
    found = rows(url, LIVE_MESSAGES, tmp_path / "messages.parquet")
    states = sorted((row["queue"], row["state"]) for row in found)
    assert states == [("mail", "ready"), ("mail", "ready"), ("once", "dead"), ("once", "ready")]
    assert (queues["mail"]["ready"], queues["once"]["ready"], queues["once"]["dead"]) == (2, 1, 1)


def test_where_there_is_no_store_there_are_no_rows(tmp_path: Path) -> None:
    assert rows(None, LIVE_MESSAGES, tmp_path / "messages.parquet") == []


def test_sql_asks_the_messages_that_are_waiting(spark: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    with connect(url) as client:
        fill(client)
    lake = Lake(tmp_path / "lake")
    lake.create()
    query = "SELECT state, headers['tenant'] AS tenant, string(body) AS body FROM live.messages WHERE priority > 0"
    with tables_for(query, spark, lake, LiveTables(url)):
        assert [row.asDict() for row in spark.sql(query).collect()] == [
            {"state": "leased", "tenant": "ada", "body": '{"n":1}'}
        ]
