"""Long polls: whatever makes a message ready wakes exactly one poll, without a thundering herd."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock import LiteQueue
from penstock.core.commands import Command, Lease
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running
from tests.robustness.disconnects import request

MANY = 1_200
SOON = 30.0


class Poller:
    """A raw connection with a long poll."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def start(cls, server: Running, queue: str, query: str = "wait_ms=60000") -> Poller:
        poller = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        poller._writer.write(request(f"{queue}/poll?{query}"))
        return poller

    async def answer(self) -> list[dict[str, Any]]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        self._writer.close()
        messages: list[dict[str, Any]] = json.loads(body)["messages"]
        return messages

    def leave(self) -> None:
        self._writer.transport.abort()


async def start_many(server: Running, queue: str, count: int, query: str = "wait_ms=60000") -> list[Poller]:
    before = server.app.broker.polls
    pollers = []
    for first in range(0, count, 200):
        size = min(200, count - first)
        pollers += await asyncio.gather(*(Poller.start(server, queue, query) for _ in range(size)))
    await until(lambda: server.app.broker.polls == before + count)
    return pollers


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def answers(pollers: list[Poller]) -> list[list[dict[str, Any]]]:
    async with asyncio.timeout(SOON):
        return await asyncio.gather(*(poller.answer() for poller in pollers))


@contextmanager
def leases_counted(server: Running) -> Iterator[list[int]]:
    """Count the lease commands in each batch that reaches the store."""
    store: Any = server.app.broker.store
    prepare = store.prepare
    counted: list[int] = []

    def count(commands: list[Command[Any]]) -> Any:
        counted.append(sum(isinstance(command, Lease) for command in commands))
        return prepare(commands)

    store.prepare = count
    try:
        yield counted
    finally:
        del store.prepare


def push(client: Client, queue: str, count: int, **options: Any) -> list[int]:
    body = {"messages": [{"payload": number, **options} for number in range(count)]}
    ids: list[int] = client.post(f"{queue}/messages", body).json["message_ids"]
    return ids


def test_a_thousand_polls_get_one_message_each_without_a_herd(server: Running, client: Client, queue: str) -> None:
    async def scenario() -> None:
        pollers = await start_many(server, queue, MANY)
        with leases_counted(server) as counted:
            one = await asyncio.to_thread(push, client, queue, 1)
            await until(lambda: server.app.broker.polls == MANY - 1)
            assert sum(counted) <= 3
            many = await asyncio.to_thread(push, client, queue, MANY - 1)
            got = [message["id"] for messages in await answers(pollers) for message in messages]
            assert sorted(got) == sorted(one + many)
            assert sum(counted) <= 3 * MANY

    asyncio.run(scenario())


async def wake_by(server: Running, queue: str, act: Callable[[], Any], count: int = 50) -> list[int]:
    """Return the messages that `count` waiting polls get from an action, and end the other polls."""
    pollers = await start_many(server, queue, count)
    with leases_counted(server) as counted:
        await asyncio.to_thread(act)
        waiting = {asyncio.ensure_future(poller.answer()): poller for poller in pollers}
        done, _pending = await asyncio.wait(waiting, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert done, "no poll was woken"
        await asyncio.sleep(0.3)
        done = {future for future in waiting if future.done()}
        got = [message["id"] for future in done for message in future.result()]
        assert sum(counted) <= 3 * len(got) + 12, "a thundering herd"
    for future in waiting.keys() - done:
        future.cancel()
        waiting[future].leave()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(got) == len(set(got))
    await until(lambda: server.app.broker.polls == 0)
    return got


def test_a_push_wakes_one_poll_for_each_message(server: Running, client: Client, queue: str) -> None:
    ids: list[int] = []
    got = asyncio.run(wake_by(server, queue, lambda: ids.extend(push(client, queue, 5))))
    assert sorted(got) == sorted(ids)


def test_a_message_that_becomes_due_wakes_one_poll(server: Running, client: Client, queue: str) -> None:
    push(client, queue, 1, delay_ms=1_500)
    assert len(asyncio.run(wake_by(server, queue, lambda: None))) == 1


def test_a_delayed_push_wakes_one_poll_when_it_is_due(server: Running, client: Client, queue: str) -> None:
    assert len(asyncio.run(wake_by(server, queue, lambda: push(client, queue, 1, delay_ms=500)))) == 1


def test_an_expired_lease_wakes_one_poll(server: Running, client: Client, queue: str) -> None:
    push(client, queue, 1)
    client.post(f"{queue}/poll?wait_ms=0&visibility_ms=1500")
    assert len(asyncio.run(wake_by(server, queue, lambda: None))) == 1


def test_a_shortened_lease_wakes_a_poll_in_time(server: Running, client: Client, queue: str) -> None:
    [message_id] = push(client, queue, 1)
    client.post(f"{queue}/poll?wait_ms=0&visibility_ms=600000")
    shorten = {"id": message_id, "ms": 300}
    assert asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/extend", shorten))) == [message_id]


def test_a_nack_wakes_one_poll(server: Running, client: Client, queue: str) -> None:
    [message_id] = push(client, queue, 1)
    client.post(f"{queue}/poll?wait_ms=0")
    nack = {"id": message_id, "delay_ms": 0}
    assert asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/nack", nack))) == [message_id]


def test_an_opening_window_wakes_one_poll(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, window_ms=800)
    assert len(asyncio.run(wake_by(server, queue, lambda: push(client, queue, 2)))) == 2


def test_a_resume_wakes_polls(server: Running, client: Client, queue: str) -> None:
    client.post(f"{queue}/pause")
    push(client, queue, 3)
    assert len(asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/resume")))) == 3


def test_an_ack_frees_a_slot_in_flight(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_in_flight=1)
    first, second = push(client, queue, 2)
    client.post(f"{queue}/poll?wait_ms=0")
    ack = {"id": first}
    assert asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/ack", ack))) == [second]


def test_an_ack_in_a_transaction_frees_a_slot_in_flight(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_in_flight=1)
    first, second = push(client, queue, 2)
    client.post(f"{queue}/poll?wait_ms=0")
    body = {"ack": [{"id": first}]}
    assert asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/transact", body))) == [second]


def test_removing_a_leased_message_frees_its_slot_in_flight(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_in_flight=1)
    first, second = push(client, queue, 2)
    client.post(f"{queue}/poll?wait_ms=0")
    assert asyncio.run(wake_by(server, queue, lambda: client.delete(f"{queue}/messages/{first}"))) == [second]


def test_a_redrive_wakes_polls(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    [message_id] = push(client, queue, 1)
    client.post(f"{queue}/poll?wait_ms=0")
    client.post(f"{queue}/nack", {"id": message_id})
    time.sleep(0.005)
    assert asyncio.run(wake_by(server, queue, lambda: client.post(f"{queue}/dlq/requeue"))) == [message_id]


def test_a_dead_letter_wakes_polls_of_the_dead_letters(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    [message_id] = push(client, queue, 1)
    client.post(f"{queue}/poll?wait_ms=0")
    nack = {"id": message_id}
    got = asyncio.run(wake_by(server, f"{queue}.dlq", lambda: client.post(f"{queue}/nack", nack)))
    assert got == [message_id]


def test_a_write_by_another_process_wakes_polls(server: Running, client: Client, name: str) -> None:
    queue = client.queue(name)
    with LiteQueue(server.path) as lite:
        got = asyncio.run(wake_by(server, queue, lambda: lite.put_many([b"1", b"2", b"3"], name)))
    assert len(got) == 3


def test_an_unrelated_write_of_this_server_wakes_no_poll(
    server: Running, client: Client, queue: str, name: str
) -> None:
    other = client.queue(f"{name}-other")

    async def scenario() -> None:
        pollers = await start_many(server, queue, 50)
        with leases_counted(server) as counted:
            for _ in range(50):
                await asyncio.to_thread(push, client, other, 1)
            await asyncio.sleep(0.1)
            assert sum(counted) == 0
        for poller in pollers:
            poller.leave()
        await until(lambda: server.app.broker.polls == 0)

    asyncio.run(scenario())


def test_a_disconnected_poll_passes_its_wake_up_on(server: Running, client: Client, queue: str) -> None:
    """Half of the polls disconnect while messages arrive. The other half gets all of them."""

    async def scenario() -> None:
        pollers = await start_many(server, queue, 200)
        staying, leaving = pollers[::2], pollers[1::2]

        async def leave() -> None:
            for poller in leaving:
                poller.leave()
                await asyncio.sleep(0)

        pushing = [asyncio.to_thread(push_apart, server, queue) for _ in range(4)]
        _, *pushed = await asyncio.gather(leave(), *pushing)
        got = [message["id"] for messages in await answers(staying) for message in messages]
        assert len(set(got)) == 100
        assert set(got) <= {message_id for ids in pushed for message_id in ids}

    def push_apart(server: Running, queue: str) -> list[int]:
        with server.client() as client:
            return [message_id for _ in range(50) for message_id in push(client, queue, 1)]

    asyncio.run(scenario())


def test_a_dropped_queue_ends_its_polls(server: Running, client: Client, queue: str) -> None:
    async def scenario() -> None:
        readers = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request(f"{queue}/poll?wait_ms=60000"))
            readers.append((reader, writer))
        await until(lambda: server.app.broker.polls == 20)
        await asyncio.to_thread(client.delete, f"{queue}?force=true")
        async with asyncio.timeout(SOON):
            for reader, writer in readers:
                assert (await reader.readline()).startswith(b"HTTP/1.1 404")
                writer.close()

    asyncio.run(scenario())


def test_an_empty_poll_ends_on_time(server: Running, queue: str) -> None:
    async def scenario() -> None:
        started = time.monotonic()
        pollers = await start_many(server, queue, 100, "wait_ms=1000")
        assert await answers(pollers) == [[]] * 100
        assert 0.9 < time.monotonic() - started < SOON

    asyncio.run(scenario())


def test_too_many_polls_are_429(serve: Fresh) -> None:
    server = serve(polls_max=3)

    async def scenario(client: Client) -> None:
        pollers = await start_many(server, "/queues/q", 3)
        answer = await asyncio.to_thread(client.post, "/queues/q/poll?wait_ms=1000")
        assert (answer.status, answer.json["code"]) == (429, "too_many_polls")
        assert answer.headers["Retry-After"] == "1"
        for poller in pollers:
            poller.leave()
        await until(lambda: server.app.broker.polls == 0)

    with server.client() as client:
        client.queue("q")
        asyncio.run(scenario(client))


def test_the_longest_wait_is_limited(serve: Fresh) -> None:
    with serve(wait_ms_max=100, wait_ms_default=50).client() as client:
        queue = client.queue("q")
        started = time.monotonic()
        assert client.post(f"{queue}/poll?wait_ms=60000").json == {"messages": []}
        assert client.post(f"{queue}/poll").json == {"messages": []}
        assert time.monotonic() - started < SOON
