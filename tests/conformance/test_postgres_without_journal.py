"""A PostgreSQL store without a journal, which is the default for a program without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import Ack, Configure, Drop, Lease, Pause, Push, Settled, SettleItem
from penstock.core.model import LEASE_BYTES_MAX, PushItem, QueueOptions
from penstock.errors import QueueFull, UnknownQueue
from penstock.store.postgres import PostgresStore
from tests.conformance.cutting import Cutter
from tests.conformance.postgres_support import PostgresUnderTest, events_of
from tests.conformance.support import Clock, push_command, texts
from tests.postgres import cluster, drop_schema, new_schema


@pytest.fixture
def schema() -> Iterator[str]:
    name = new_schema()
    yield name
    drop_schema(name)


def items(*messages: object) -> list[SettleItem]:
    return [SettleItem(message.id, message.token) for message in messages]  # type: ignore[attr-defined]


def open_through(cutter: Cutter, schema: str) -> PostgresStore:
    return PostgresStore(f"postgresql://postgres@/postgres?host={cutter.folder}", schema=schema)


def test_leases_of_one_batch_share_the_limit_on_bytes(unjournalled: PostgresUnderTest) -> None:
    """A lease that gets no messages because the response is full is told to retry, because the queue is not empty."""
    for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
        unjournalled.send(PushItem(payload=name * (LEASE_BYTES_MAX // 3 + 1)))
    outcomes = unjournalled.apply([Lease(queue="q", limit=2) for _ in range(3)])
    assert [[each.payload[:1] for each in outcome.messages] for outcome in outcomes] == [[b"a", b"b"], [b"c"], []]
    assert outcomes[2].more
    assert [each.payload[:1] for each in unjournalled.lease(limit=10)] == [b"d", b"e", b"f"]


def test_changes_by_another_store_take_effect_at_once(unjournalled: PostgresUnderTest) -> None:
    unjournalled.push("a")
    other = unjournalled.open_another()
    other.apply([Configure(queue="q", changes={"max_size": 1})])
    with pytest.raises(QueueFull):
        unjournalled.push("b")
    other.apply([Configure(queue="q", changes={"max_size": None}), Pause(queue="q")])
    unjournalled.push("b")
    assert unjournalled.lease() == []
    other.apply([Pause(queue="q", paused=False)])
    assert unjournalled.drain() == ["a", "b"]
    other.apply([Drop(queue="q", force=True)])
    (refused,) = unjournalled.apply([Push(queue="q", messages=[PushItem(payload=b"c")])])
    assert isinstance(refused, UnknownQueue)
    other.apply([push_command("of the new queue")])
    unjournalled.push("d")
    assert unjournalled.drain() == ["of the new queue", "d"]


def test_a_journal_turned_on_by_another_store_records_later_events(unjournalled: PostgresUnderTest) -> None:
    unjournalled.push("a")
    PostgresStore(str(unjournalled.path), schema=unjournalled.schema, clock=unjournalled.clock, journal=True).close()
    unjournalled.push("b")
    unjournalled.ack(*unjournalled.lease(limit=2))
    assert [event.kind for event in events_of(unjournalled)] == [
        "queue",
        "pushed",
        "leased",
        "leased",
        "acked",
        "acked",
    ]


def test_plain_and_other_messages_share_one_order(unjournalled: PostgresUnderTest) -> None:
    unjournalled.push("plain")
    unjournalled.push("urgent", priority=5)
    unjournalled.push("later", delay_ms=1_000)
    assert unjournalled.drain() == ["urgent", "plain"]
    unjournalled.clock.advance(1_000)
    assert unjournalled.drain() == ["later"]


def test_leases_of_one_batch_have_tokens_of_their_own(unjournalled: PostgresUnderTest) -> None:
    unjournalled.push(*"abcde")
    outcomes = unjournalled.apply(
        [Lease(queue="q", limit=2), Lease(queue="q", lease_ms=7, worker="w"), Lease(queue="q", limit=9)]
    )
    one, two, three = (outcome.messages for outcome in outcomes)
    assert [texts(each) for each in (one, two, three)] == [["a", "b"], ["c"], ["d", "e"]]
    assert len({message.token for message in (*one, *two, *three)}) == 3
    assert two[0].leased_until == unjournalled.clock() + 7
    wrong = SettleItem(one[0].id, two[0].token)
    (settled,) = unjournalled.apply([Ack(queue="q", items=[wrong, *items(one[1])])])
    assert settled.results == [Settled.STALE, Settled.OK]


def test_an_empty_queue_reports_when_to_check_again(unjournalled: PostgresUnderTest, clock: Clock) -> None:
    unjournalled.push("a")
    (leased,) = unjournalled.lease(lease_ms=500)
    assert unjournalled.try_lease().wake_at == leased.leased_until
    clock.advance(500)
    assert texts(unjournalled.lease()) == ["a"]


def test_commands_for_several_queues_get_separate_results(unjournalled: PostgresUnderTest) -> None:
    names = ["a", "b", "c"]
    for name in names:
        unjournalled.push("first", queue=name)
    pushed = unjournalled.apply([push_command(f"{name}{n}", name) for n in range(2) for name in names])
    assert len({receipt.id for outcome in pushed for receipt in outcome.receipts}) == 6
    leased = unjournalled.apply([Lease(queue=name, limit=9) for name in names])
    assert [texts(outcome.messages) for outcome in leased] == [["first", f"{name}0", f"{name}1"] for name in names]
    settled = unjournalled.apply([Ack(queue=name, items=items(*leased[n].messages)) for n, name in enumerate(names)])
    assert all(outcome.results == [Settled.OK] * 3 for outcome in settled)


@pytest.mark.parametrize("kept", [True, False])
def test_an_ack_with_a_lost_response_is_done_once(schema: str, kept: bool) -> None:
    with Cutter(cluster().folder, cut_before=not kept, at=b".finish_ranges") as cutter:
        store = open_through(cutter, schema)
        store.apply([push_command("a"), push_command("b")])
        (leased,) = store.apply([Lease(queue="q", limit=2)])
        mine, stale = items(*leased.messages)
        stale.token = mine.token[:-1] + ("0" if mine.token[-1] != "0" else "1")
        cutter.armed.set()
        (settled,) = store.apply([Ack(queue="q", items=[mine, stale])])
        assert (settled.results, cutter.cuts) == ([Settled.OK, Settled.STALE], 1)
        info = store.find_queue("q")
        assert info is not None
        assert (info.leased, info.totals.acked) == (1, 1)
        store.close()


def test_coroutines_share_batches_and_survive_a_lost_connection(schema: str) -> None:
    async def run() -> list[str]:
        broker = Broker(PostgresStore(cluster().url, schema=schema))
        try:
            await broker.push("q", [PushItem(payload=b"first")], create=QueueOptions())
            await asyncio.gather(*(broker.push("q", [PushItem(payload=b"%d" % n)]) for n in range(50)))
            with psycopg.connect(cluster().url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'"
                )
            leased = await asyncio.gather(*(broker.lease("q", limit=1) for _ in range(51)))
            acked = await asyncio.gather(*(broker.ack("q", items(*messages)) for messages in leased))
            assert all(results == [Settled.OK] for results in acked)
            return sorted(text for messages in leased for text in texts(messages))
        finally:
            await broker.close()

    assert asyncio.run(run()) == sorted(["first", *(str(n) for n in range(50))])


def test_a_cancelled_lease_leaves_no_message_leased(schema: str) -> None:
    async def run() -> None:
        store = PostgresStore(cluster().url, schema=schema)
        broker = Broker(store)
        try:
            await broker.push("q", [PushItem(payload=b"a")], create=QueueOptions())
            await broker.push("q", [PushItem(payload=b"b")])
            waiting = asyncio.create_task(broker.lease("q", limit=2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            async with asyncio.timeout(30):
                while (await broker.stats("q")).info.ready != 2:
                    await asyncio.sleep(0.01)
        finally:
            await broker.close()

    asyncio.run(run())


def test_a_coroutines_push_gives_up_a_silent_connection(schema: str) -> None:
    async def run(cutter: Cutter) -> None:
        url = f"postgresql://postgres@/postgres?host={cutter.folder}&answer_ms=1000"
        # With a stopped clock the queue stays cached, so the push is one round trip.
        store = PostgresStore(url, schema=schema, busy_ms=500, clock=Clock())
        broker = Broker(store)
        try:
            await broker.push("q", [PushItem(payload=b"first")], create=QueueOptions())
            store._pool.drop_idle()
            cutter.armed.set()
            await broker.push("q", [PushItem(payload=b"a")])
            assert (await broker.stats("q")).info.ready == 2
        finally:
            await broker.close()

    ended = threading.Event()

    def wait() -> None:
        ended.wait(60)

    with Cutter(cluster().folder, cut_before=True, at=b".take_ids", meanwhile=wait) as cutter:
        asyncio.run(run(cutter))
        assert cutter.cuts == 1
        ended.set()
