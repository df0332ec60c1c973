"""A push on one server wakes the polls of that queue on another server, and no others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import Command, Configure, Lease, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.postgres.notifier import NAMES_MAX, PAYLOAD_BYTES_MAX, Notifier
from penstock.store.postgres import PostgresStore
from tests.postgres import cluster, drop_schema, new_schema

pytestmark = pytest.mark.timeout(120)
WAIT_MS = 60_000
MESSAGE = PushItem(payload=b"x")


@pytest.fixture
def url() -> Iterator[str]:
    schema = new_schema()
    yield f"{cluster().url}&schema={schema}"
    drop_schema(schema)


class CountingBroker(Broker):
    """A server's broker that counts its leases."""

    def __init__(self, url: str) -> None:
        store = PostgresStore(url, journal=False)
        # Even on a slow machine, a poll must not check again before it is woken.
        store._context.slow_seconds = math.inf
        super().__init__(store)
        self.leases = 0
        commit = self._commit

        def counted(command: Command[Any]) -> Any:
            self.leases += isinstance(command, Lease)
            return commit(command)

        self._commit = counted  # type: ignore[assignment]

    @property
    def waiting(self) -> int:
        return len(self._waiters._waiting)


@asynccontextmanager
async def two_brokers(url: str) -> AsyncIterator[tuple[CountingBroker, CountingBroker]]:
    here, there = CountingBroker(url), CountingBroker(url)
    try:
        yield here, there
    finally:
        await here.close()
        await there.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def make(broker: Broker, names: list[str], **options: Any) -> None:
    for start in range(0, len(names), 200):
        broker.store.apply(
            [Configure(queue=name, changes=options, create=QueueOptions()) for name in names[start : start + 200]]
        )


def run(test: Callable[[CountingBroker, CountingBroker], Awaitable[None]], url: str) -> None:
    async def with_both() -> None:
        async with two_brokers(url) as (here, there):
            await test(here, there)

    asyncio.run(with_both())


def test_a_push_wakes_only_polls_of_its_queue(url: str) -> None:
    names = [f"queue-{number:04}" for number in range(1_000)]
    pushes = 100

    async def test(here: CountingBroker, there: CountingBroker) -> None:
        make(here, names)
        polls = {
            name: asyncio.ensure_future((here, there)[number % 2].lease(name, wait_ms=WAIT_MS))
            for number, name in enumerate(names)
        }
        await until(lambda: here.waiting + there.waiting == len(names))
        here.leases = there.leases = 0
        for name in names[:pushes]:
            await here.push(name, [MESSAGE])
        for name in names[:pushes]:
            assert len(await polls[name]) == 1
        # Notifications arrive in order, so all earlier ones have been handled when this one arrives.
        await here.push(names[-1], [MESSAGE])
        assert len(await polls[names[-1]]) == 1
        assert pushes <= here.leases + there.leases <= 1.2 * (pushes + 1)
        for poll in polls.values():
            poll.cancel()

    run(test, url)


def test_a_notification_that_arrives_during_a_send_is_received(url: str) -> None:
    with psycopg.connect(cluster().url, autocommit=True) as other:
        notifier = Notifier(lambda: psycopg.connect(cluster().url, autocommit=True), "busy_channel")
        connection = notifier._listen()
        before = notifier.version("q")
        other.execute("SELECT pg_notify('busy_channel', 'somebody =q')")
        notifier.notify_later(["mine"])
        notifier._send(connection)
        connection.close()
    assert notifier.version("q") != before


@pytest.mark.parametrize("how", [{"scope": "n"}, {"scope": "n/t"}, {"queue": "n/t/q"}])
def test_a_poll_of_a_queue_its_task_or_its_namespace_is_woken(url: str, how: dict[str, str]) -> None:
    async def test(here: CountingBroker, there: CountingBroker) -> None:
        make(here, ["n/t/q", "m/t/q"])
        poll = asyncio.ensure_future(there.lease(**how, wait_ms=WAIT_MS))  # type: ignore[arg-type]
        await until(lambda: there.waiting == 1)
        there.leases = 0
        await here.push("m/t/q", [MESSAGE])
        await here.push("n/t/q", [MESSAGE])
        assert [message.queue for message in await poll] == ["n/t/q"]
        assert there.leases == 1

    run(test, url)


def test_a_message_that_dies_wakes_a_poll_for_dead_letters(url: str) -> None:
    async def test(here: CountingBroker, there: CountingBroker) -> None:
        make(here, ["q"], max_attempts=1)
        for by_sweep in (False, True):
            await here.push("q", [MESSAGE])
            poll = asyncio.ensure_future(there.lease("q.dlq", wait_ms=WAIT_MS))
            await until(lambda: there.waiting == 1)
            (leased,) = await here.lease("q", lease_ms=20 if by_sweep else 60_000)
            if by_sweep:
                await asyncio.sleep(0.1)
                await there.sweep()
            else:
                await here.nack("q", [SettleItem(leased.id, leased.token)])
            (dead,) = await poll
            assert dead.id == leased.id

    run(test, url)


def test_a_notification_without_queue_names_wakes_every_poll(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0.1.0 sends such notifications on the same database."""

    async def test(here: CountingBroker, there: CountingBroker) -> None:
        make(here, ["q", "other"])
        here.store._notifier.payloads = lambda names, late=False: [here.store._notifier.sender]  # type: ignore[attr-defined]
        polls = [asyncio.ensure_future(there.lease(name, wait_ms=WAIT_MS)) for name in ("q", "other")]
        await until(lambda: there.waiting == 2)
        there.leases = 0
        await here.push("q", [MESSAGE])
        assert len(await polls[0]) == 1
        await until(lambda: there.leases == 2)
        polls[1].cancel()

    run(test, url)


def test_a_notification_with_names_reaches_an_older_server() -> None:
    """Version 0.1.0 compares the whole payload with its own, and looks at how it ends."""
    notifier = Notifier(lambda: pytest.fail("nothing is sent"), "channel")
    assert notifier.payloads([]) == [notifier.sender]
    assert notifier.payloads(["late"]) == [f"{notifier.sender} =late"]
    assert notifier.payloads(["a"], late=True) == [f"{notifier.sender} =a late"]


def test_names_are_packed_into_as_few_notifications_as_possible() -> None:
    notifier = Notifier(lambda: pytest.fail("nothing is sent"), "channel")
    names = [f"{'n' * 255}/{'t' * 255}/{number:0255}" for number in range(40)]
    payloads = notifier.payloads(names)
    assert max(map(len, payloads)) <= PAYLOAD_BYTES_MAX
    assert len(payloads) == -(-40 // (PAYLOAD_BYTES_MAX // 780))
    other = Notifier(lambda: pytest.fail("nothing is sent"), "channel")
    for payload in payloads:
        other._receive(payload)
    assert all(other.version(name) and other.version(name + ".dlq") for name in names)
    assert other.version("another") == 0
    assert notifier.payloads([str(number) for number in range(NAMES_MAX + 1)]) == [notifier.sender]
