"""The journal in a database records every change by any server or program, once and in order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from penstock.core.commands import Ack, Lease, Nack, Push, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.journal.postgres import PostgresDrain, PostgresJournal
from penstock.log.postgres.streams import PostgresStreams
from penstock.store.postgres import PostgresStore
from tests.conformance.postgres_support import Tables
from tests.conformance.replay import Replay, check_counters
from tests.integration.command_line import Queues
from tests.integration.serving import running
from tests.integration.test_journal import ARROW, events_until, run_message_cycle
from tests.postgres import cluster

pytestmark = pytest.mark.timeout(240)


def replay_journal(store: str) -> Replay:
    """Replay the whole journal from its first event."""
    replay = Replay()
    with closing(PostgresStreams(store)) as streams:
        PostgresDrain(streams.database).drain()
        journal = PostgresJournal(streams.database)
        while page := journal.read(replay.next_offset).events:
            replay.play(page)
    return replay


def test_servers_share_their_events(store: str, tmp_path: Path) -> None:
    with (
        running(tmp_path, store=store) as one,
        running(tmp_path, store=store) as two,
        one.client() as here,
        two.client() as there,
    ):
        message_id = run_message_cycle(here, here.queue("q"))
        events = events_until(there, "q", wait_for="acked")
        assert [event["kind"] for event in events] == ["queue", "pushed", "leased", "nacked", "leased", "acked"]
        pushed, acked = events[1], events[-1]
        assert (pushed["id"], pushed["priority"], pushed["payload"]) == (message_id, 3, {"n": 2**60})
        assert (acked["pushed_at"], acked["first_leased_at"]) == (pushed["at"], events[2]["at"])
        assert [error["error"] for error in acked["details"]["errors"]] == ["ouch"]
        assert all(event["uuid"] == pushed["uuid"] for event in events[2:])
        answer = there.get("/journal/events?from=0", accept=ARROW)
        table = pa.ipc.open_stream(answer.body).read_all()
        kinds_by_queue = zip(table["queue"].to_pylist(), table["kind"].to_pylist(), strict=True)
        assert [kind for queue, kind in kinds_by_queue if queue == "q"] == [event["kind"] for event in events]
        assert [each["name"] for each in here.get("/streams").json["streams"]] == []
        assert here.get("/streams/%21journal").status in (404, 422)


def test_the_journal_can_be_read_without_a_server(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store) as server, server.client() as client:
        run_message_cycle(client, client.queue("emails"))
    commands = Queues(("--store", store), "postgres")
    kinds_by_queue = commands.ok("journal", "tail", "--from", "0", "--limit", "6", "--queue", "emails")
    kinds = [line.split("  ")[1].strip() for line in kinds_by_queue.splitlines()]
    assert kinds == ["queue", "pushed", "leased", "nacked", "leased", "acked"]
    assert commands.json("journal", "show")["next"] >= 6


def test_a_consumer_has_a_durable_position(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store) as server, server.client() as client:
        run_message_cycle(client, client.queue("q"))
        events_until(client, "q", wait_for="acked")
        assert client.ask("PUT", "/journal/consumers/lake", {"offset": 1}).status == 200
        shown = client.get("/journal").json
        assert [(each["offset"], each["lag"]) for each in shown["consumers"]] == [(1, shown["next"] - 2)]
        assert client.ask("PUT", "/journal/consumers/lake", {"offset": 0}).status == 409
        assert client.delete("/journal/consumers/lake").status == 200


def work(store: PostgresStore, number: int) -> None:
    for step in range(25):
        messages = [PushItem(payload=b"%d-%d-%d" % (number, step, each)) for each in range(3)]
        store.apply([Push(queue=f"q{number % 2}", messages=messages, create=QueueOptions())])
        (leased,) = store.apply([Lease(queue=f"q{step % 2}", limit=4)])
        for message in getattr(leased, "messages", ()):
            verb = Nack if message.id % 5 == 0 else Ack
            store.apply([verb(queue=message.queue, items=[SettleItem(message.id, message.token, delay_ms=0)])])


def test_causes_precede_effects_under_concurrent_commits(store: str, schema: str) -> None:
    stores = [PostgresStore(store, journal=True) for _ in range(3)]
    done = threading.Event()

    def drain() -> None:
        with closing(PostgresStreams(store)) as streams:
            drains = PostgresDrain(streams.database)
            while not done.is_set():
                drains.step()

    with ThreadPoolExecutor(8) as pool:
        draining = [pool.submit(drain) for _ in range(2)]
        working = [pool.submit(work, stores[number % 3], number) for number in range(6)]
        for each in working:
            each.result()
        done.set()
        for each in draining:
            each.result()
    with closing(Tables(cluster().url, schema)) as tables:
        check_counters(tables, replay_journal(store))
    for each in stores:
        each.close()


def test_an_open_transaction_does_not_block_others(store: str, schema: str) -> None:
    def push(payload: bytes) -> Push:
        return Push(queue="q", messages=[PushItem(payload=payload)], create=QueueOptions())

    with closing(PostgresStore(store, journal=True)) as one, psycopg.connect(cluster().url) as connection:
        one.apply([push(b"first")])
        one.push_on(connection, push(b"held"))
        one.apply([push(b"free")])
        with closing(PostgresStreams(store)) as streams:
            PostgresDrain(streams.database).drain()
            seen = PostgresJournal(streams.database).read().events
        assert [event.body for event in seen if event.kind == "pushed"] == [b"first", b"free"]
        connection.commit()
    with closing(Tables(cluster().url, schema)) as tables:
        replay = replay_journal(store)
        check_counters(tables, replay)
        assert sum(total["pushed"] for total in replay.totals.values()) == 3


def test_a_transaction_open_during_several_scans_is_recorded_when_it_commits(store: str) -> None:
    """No other transaction runs meanwhile, so the newest finished transaction is older than the open one."""
    with (
        closing(PostgresStore(store, journal=True)) as one,
        closing(PostgresStreams(store)) as streams,
        psycopg.connect(cluster().url) as connection,
    ):
        one.apply([Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions())])
        drain, journal = PostgresDrain(streams.database), PostgresJournal(streams.database)
        drain.drain()
        one.push_on(connection, Push(queue="q", messages=[PushItem(payload=b"late")]))
        for _ in range(4):
            drain.step()
        connection.commit()
        drain.drain()
        assert [event.body for event in journal.read().events if event.kind == "pushed"] == [b"x", b"late"]


def test_a_program_without_a_server_drains_its_journal(store: str) -> None:
    with closing(PostgresStore(store, journal=True)) as one:
        for _ in range(2_100):
            one.apply([Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions())])
    with closing(PostgresStreams(store)) as streams:
        assert PostgresJournal(streams.database).next_offset() > 2_000


def test_a_backlog_of_many_steps_is_drained_completely(store: str, schema: str) -> None:
    with closing(PostgresStore(store, journal=True)) as one, closing(PostgresStreams(store)) as streams:
        for _ in range(30):
            one.apply([Push(queue="q", messages=[PushItem(payload=b"x" * 500_000)], create=QueueOptions())])
        drains = PostgresDrain(streams.database)
        steps = 0
        while drains.step():
            steps += 1
        assert steps > 3
        with psycopg.connect(cluster().url) as connection:
            assert connection.execute(f"SELECT count(*) FROM {schema}.spool".encode()).fetchone() == (0,)
        events = sum(batch.num_rows for batch in PostgresJournal(streams.database).read_arrow(0, 1_000))
        assert events == 31


def test_without_a_journal_no_event_is_recorded(store: str, schema: str) -> None:
    with closing(PostgresStore(store)) as one:
        one.apply([Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions())])
    with psycopg.connect(cluster().url) as connection:
        assert connection.execute(f"SELECT count(*) FROM {schema}.spool".encode()).fetchone() == (0,)
