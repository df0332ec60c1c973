"""Plain batches are one call of the database. Whatever stands in its way, the outcome is that of the long way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import Ack, CatchUp, Configure, Drop, Lease, Pause, Push, Settled, SettleItem, Sweep
from penstock.core.model import LEASE_BYTES_MAX, PushItem, QueueOptions
from penstock.errors import QueueFull, UnknownQueue
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.fastpath.calls import FastBatch
from penstock.store.postgres.fastpath.eligibility import plan
from penstock.store.postgres.sweep import MARK_KEPT_MS
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


def planned(store: PostgresUnderTest, *commands: object) -> FastBatch:
    found = plan(store._context, commands)  # type: ignore[arg-type]
    assert found is not None
    return found


def through(cutter: Cutter, schema: str) -> PostgresStore:
    return PostgresStore(f"postgresql://postgres@/postgres?host={cutter.folder}", schema=schema)


def look_at_leases(at_once: PostgresUnderTest) -> None:
    """As the first lease of each second does, for those from before the clock was set back."""
    at_once.apply([CatchUp(queue="q")])


def test_a_plain_message_passes_with_three_calls(at_once: PostgresUnderTest) -> None:
    at_once.push("first")
    look_at_leases(at_once)
    for command in (push_command("a"), Lease(queue="q")):
        assert planned(at_once, command)
    at_once.push("a")
    first, second = at_once.lease(limit=2)
    assert planned(at_once, Ack(queue="q", items=items(first, second)))
    at_once.ack(first, second)
    info = at_once.info()
    assert (info.ready, info.leased, info.totals.acked) == (0, 0, 2)


def test_one_call_answers_no_more_bytes_than_a_lease_may(at_once: PostgresUnderTest) -> None:
    """And who comes too late for them asks again: the queue is not empty."""
    for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
        at_once.send(PushItem(payload=name * (LEASE_BYTES_MAX // 3 + 1)))
    look_at_leases(at_once)
    leases = [Lease(queue="q", limit=2) for _ in range(3)]
    assert planned(at_once, *leases)
    outcomes = at_once.apply(leases)
    assert [[each.payload[:1] for each in outcome.messages] for outcome in outcomes] == [[b"a", b"b"], [b"c"], []]
    assert outcomes[2].more
    assert [each.payload[:1] for each in at_once.lease(limit=10)] == [b"d", b"e", b"f"]


def test_what_another_store_changed_is_minded_at_once(at_once: PostgresUnderTest) -> None:
    at_once.push("a")
    other = at_once.open_another()
    other.apply([Configure(queue="q", changes={"max_size": 1})])
    with pytest.raises(QueueFull):
        at_once.push("b")
    other.apply([Configure(queue="q", changes={"max_size": None}), Pause(queue="q")])
    at_once.push("b")
    assert at_once.lease() == []
    other.apply([Pause(queue="q", paused=False)])
    assert at_once.drain() == ["a", "b"]
    other.apply([Drop(queue="q", force=True)])
    (refused,) = at_once.apply([Push(queue="q", messages=[PushItem(payload=b"c")])])
    assert isinstance(refused, UnknownQueue)
    other.apply([push_command("of the new queue")])
    at_once.push("d")
    assert at_once.drain() == ["of the new queue", "d"]


def test_a_journal_that_another_store_turned_on_tells_what_follows(at_once: PostgresUnderTest) -> None:
    at_once.push("a")
    PostgresStore(str(at_once.path), schema=at_once.schema, clock=at_once.clock, journal=True).close()
    at_once.push("b")
    at_once.ack(*at_once.lease(limit=2))
    assert [event.kind for event in events_of(at_once)] == ["queue", "pushed", "leased", "leased", "acked", "acked"]


def test_messages_that_are_not_plain_come_in_their_order_among_those_that_are(at_once: PostgresUnderTest) -> None:
    at_once.push("plain")
    at_once.push("urgent", priority=5)
    at_once.push("later", delay_ms=1_000)
    assert at_once.drain() == ["urgent", "plain"]
    at_once.clock.advance(1_000)
    assert at_once.drain() == ["later"]


def test_leases_of_one_call_have_tokens_of_their_own(at_once: PostgresUnderTest) -> None:
    at_once.push(*"abcde")
    outcomes = at_once.apply(
        [Lease(queue="q", limit=2), Lease(queue="q", lease_ms=7, worker="w"), Lease(queue="q", limit=9)]
    )
    one, two, three = (outcome.messages for outcome in outcomes)
    assert [texts(each) for each in (one, two, three)] == [["a", "b"], ["c"], ["d", "e"]]
    assert len({message.token for message in (*one, *two, *three)}) == 3
    assert two[0].leased_until == at_once.clock() + 7
    wrong = SettleItem(one[0].id, two[0].token)
    (settled,) = at_once.apply([Ack(queue="q", items=[wrong, *items(one[1])])])
    assert settled.results == [Settled.STALE, Settled.OK]


def test_an_empty_queue_says_when_to_look_again(at_once: PostgresUnderTest, clock: Clock) -> None:
    at_once.push("a")
    (leased,) = at_once.lease(lease_ms=500)
    assert at_once.try_lease().wake_at == leased.leased_until
    clock.advance(500)
    assert texts(at_once.lease()) == ["a"]


def test_a_batch_for_several_queues_answers_each(at_once: PostgresUnderTest) -> None:
    names = ["a", "b", "c"]
    for name in names:
        at_once.push("first", queue=name)
    pushed = at_once.apply([push_command(f"{name}{n}", name) for n in range(2) for name in names])
    assert len({receipt.id for outcome in pushed for receipt in outcome.receipts}) == 6
    leased = at_once.apply([Lease(queue=name, limit=9) for name in names])
    assert [texts(outcome.messages) for outcome in leased] == [["first", f"{name}0", f"{name}1"] for name in names]
    settled = at_once.apply([Ack(queue=name, items=items(*leased[n].messages)) for n, name in enumerate(names)])
    assert all(outcome.results == [Settled.OK] * 3 for outcome in settled)


@pytest.mark.parametrize("kept", [True, False])
def test_a_push_whose_answer_was_lost_is_done_once_and_gets_its_ids(schema: str, kept: bool) -> None:
    with Cutter(cluster().folder, cut_before=not kept, at=b"push_at_once") as cutter:
        store = through(cutter, schema)
        store.apply([push_command("first")])
        cutter.armed.set()
        outcomes = store.apply([push_command("a"), push_command("b")])
        assert cutter.cuts == 1
        found = store.peek("q", limit=9)[0]
        assert texts(found) == ["first", "a", "b"]
        assert [message.id for message in found[1:]] == [outcome.receipts[0].id for outcome in outcomes]
        store.close()


@pytest.mark.parametrize("kept", [True, False])
def test_an_ack_whose_answer_was_lost_is_done_once(schema: str, kept: bool) -> None:
    with Cutter(cluster().folder, cut_before=not kept, at=b"ack_at_once") as cutter:
        store = through(cutter, schema)
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


def test_a_push_that_arrives_after_it_was_asked_for_is_refused(at_once: PostgresUnderTest) -> None:
    at_once.push("first")
    short = planned(at_once, push_command("late"))
    with at_once._pool.wire() as wire:
        statements = short.statements(at_once._context, [])
        assert not short.recover_outcomes(wire, at_once._context.sql)
        with pytest.raises(psycopg.errors.UniqueViolation):
            wire.run(statements)
    assert at_once.drain() == ["first"]


def test_marks_are_forgotten_when_nobody_can_ask_any_more(at_once: PostgresUnderTest, clock: Clock) -> None:
    at_once.push("a")
    at_once.push("b")

    def marks() -> int:
        with psycopg.connect(cluster().url) as connection:
            (count,) = connection.execute(f"SELECT count(*) FROM {at_once.schema}.mark".encode()).fetchone() or (0,)
        return int(count)

    at_once.do(Sweep())
    assert marks() == 1
    clock.advance(MARK_KEPT_MS + 1)
    at_once.do(Sweep())
    assert marks() == 0


def test_coroutines_share_calls_and_survive_a_lost_connection(schema: str) -> None:
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


def test_a_coroutine_that_leaves_while_its_lease_is_asked_for_leaves_none_behind(schema: str) -> None:
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


def test_who_comes_alone_is_asked_for_at_once_and_all_others_join(schema: str) -> None:
    """The second goes alone, as the first did; those who come while it is on its way go together."""

    async def run() -> None:
        broker = Broker(PostgresStore(cluster().url, schema=schema))
        batches: list[int] = []
        try:
            await broker.push("q", [PushItem(payload=b"0")], create=QueueOptions())
            await broker.push("q", [PushItem(payload=b"1")])
            broker.committer.committed = lambda count, _: batches.append(count)
            async with asyncio.timeout(30):
                await asyncio.gather(*(broker.push("q", [PushItem(payload=b"%d" % n)]) for n in range(2, 9)))
            assert batches == [1, 6]
            batches.clear()
            assert await broker.lease("q", limit=1)
            leaving = asyncio.create_task(broker.lease("q", limit=2))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            async with asyncio.timeout(30):
                while (await broker.stats("q")).info.ready != 8:
                    await asyncio.sleep(0.01)
        finally:
            await broker.close()

    asyncio.run(run())


def test_a_line_that_goes_silent_under_a_coroutines_push_is_given_up(schema: str) -> None:
    async def run(cutter: Cutter) -> None:
        url = f"postgresql://postgres@/postgres?host={cutter.folder}&answer_ms=1000"
        broker = Broker(PostgresStore(url, schema=schema, busy_ms=500))
        try:
            await broker.push("q", [PushItem(payload=b"first")], create=QueueOptions())
            cutter.armed.set()
            await broker.push("q", [PushItem(payload=b"a")])
            assert (await broker.stats("q")).info.ready == 2
        finally:
            await broker.close()

    ended = threading.Event()

    def wait() -> None:
        ended.wait(60)

    with Cutter(cluster().folder, cut_before=True, at=b"push_at_once", meanwhile=wait) as cutter:
        asyncio.run(run(cutter))
        assert cutter.cuts == 1
        ended.set()
