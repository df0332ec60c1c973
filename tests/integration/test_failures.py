"""A failure is stored with its error and traceback, and a consumer can dead-letter a message at once: SDK, HTTP,
CLI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.integration.client_support import Sdk
from tests.integration.command_line import Queues
from tests.integration.serving import Running, running

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(params=["sqlite", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    return f"http://127.0.0.1:{request.getfixturevalue('server').port}"


@pytest.fixture(params=["async", "sync"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return Sdk(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def fail_inside(payload: str) -> None:
    raise ValueError(f"cannot reach postgresql://me:hunter2@db/x for {payload}")


async def work_all(sdk: Sdk, queue: Any, work: Any) -> Any:
    """Run a worker until the queue is empty."""
    worker = queue.worker()(sdk.handler(work))
    working = asyncio.ensure_future(sdk.run(worker))
    stats = await queue.stats()
    while stats.ready + stats.scheduled + stats.leased:
        await asyncio.sleep(0.01)
        stats = await queue.stats()
    worker.stop()
    await working
    return stats


def test_a_failure_in_a_worker_keeps_its_traceback_without_secrets(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=2, backoff_ms=0)
            await queue.push("ann")

            async def work(message: Any) -> None:
                fail_inside(message.payload)

            await work_all(sdk, queue, work)
            [dead] = await queue.dead_letters()
            found = await queue.get(dead.id)
            assert [each.attempt for each in found.errors] == [2, 1]
            for failure in found.errors:
                assert failure.error == "ValueError: cannot reach postgresql://…@db/x for ann"
                assert "in fail_inside" in failure.traceback
                assert failure.traceback.rstrip().endswith("…@db/x for ann")
                assert "hunter2" not in failure.traceback

    asyncio.run(main())


def test_a_worker_can_dead_letter_a_message_at_once(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=9)
            await queue.push_many(["dead", "gone"])

            async def work(message: Any) -> None:
                raise (penstock.DeadLetter if message.payload == "dead" else penstock.Discard)("no such user")

            stats = await work_all(sdk, queue, work)
            [dead] = await queue.dead_letters()
            assert (dead.payload, dead.error, dead.attempts) == ("dead", "no such user", 1)
            assert (stats.dead, stats.totals.dead, stats.totals.acked) == (1, 2, 0)

    asyncio.run(main())


def test_a_nack_can_dead_letter_at_once(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=9)
            await queue.push_many([1, 2, 3, 4, 5])
            one, two, three, four, five = await queue.lease(5)
            await one.nack("one", dead=True)
            await queue.nack(two, "two", discard=True)
            assert await queue.nack_many([three], "three", dead=True) == []
            async with queue.transact() as tx:
                tx.nack(four, "four", dead=True)
            with pytest.raises(penstock.DeadLetter):
                async with five:
                    raise penstock.DeadLetter("five")
            assert sorted(each.error for each in await queue.dead_letters()) == ["five", "four", "one", "three"]
            with pytest.raises(penstock.WrongType, match="dead"):
                await one.nack("one", dead=1)

    asyncio.run(main())


def test_a_nack_over_http_can_dead_letter_at_once_with_a_traceback(server: Running) -> None:
    from penstock.core.model import TRACEBACK_MAX

    with server.client() as client:
        queue = client.queue("plain-http", max_attempts=9)
        ids = client.post(f"{queue}/messages", {"messages": [{"payload": 1}, {"payload": 2}]}).json["message_ids"]
        one, two = client.post(f"{queue}/poll?batch=2&wait_ms=0").json["messages"]
        trace = "x" * TRACEBACK_MAX + "token=abc"
        sent = {"id": one["id"], "token": one["token"], "error": "bad", "traceback": trace, "dead": True}
        assert client.post(f"{queue}/nack", sent).json["results"][0]["state"] == "dead"
        dropped = {"id": two["id"], "token": two["token"], "discard": True}
        assert client.post(f"{queue}/nack", {"items": [dropped]}).json["results"] == [{"id": ids[1], "result": "ok"}]
        [failure] = client.get(f"{queue}/messages/{ids[0]}").json["errors"]
        assert len(failure["traceback"]) == TRACEBACK_MAX
        assert failure["traceback"].endswith("xtoken=…")
        assert client.get(f"{queue}/messages/{ids[1]}").status == 404
        assert client.post(f"{queue}/nack", {**sent, "traceback": "x" * 65_537}).status == 422


@pytest.mark.parametrize("where", ["http", "db"])
def test_the_command_line_dead_letters_and_shows_tracebacks(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if where == "http":
        url = f"http://127.0.0.1:{request.getfixturevalue('server').port}"
        queues = Queues(("--url", url), "http")
    else:
        url = f"sqlite:///{tmp_path}/q.db"
        queues = Queues(("--db", str(tmp_path / "q.db")), "db")
    queues.ok("queue", "add", "--name", "cli")
    with penstock.connect(url) as client:
        queue = client.queue("cli")
        queue.push_many([1, 2, 3])
        with pytest.raises(ValueError, match="hunter2"), queue.lease()[0] as message:
            fail_inside("ann")
        shown = queues.ok("message", "peek", "--queue", "cli", "--id", str(message.id))
        assert "in fail_inside" in shown
        assert "hunter2" not in shown
        one, two = queue.lease(2)
        queues.ok("message", "nack", "--queue", "cli", "--ids", f"{one.id}:{one.token}", "--dead", "--error", "no")
        queues.ok("message", "nack", "--queue", "cli", "--ids", f"{two.id}:{two.token}", "--discard")
        assert [each.error for each in queue.dead_letters()] == ["no"]
        assert queue.get(two.id) is None


def test_an_embedded_queue_keeps_tracebacks(tmp_path: Path) -> None:
    with penstock.LiteQueue(str(tmp_path / "q.db"), max_retries=0) as lite:
        lite.put(b"x")
        with pytest.raises(ValueError, match="hunter2"), lite.process():
            fail_inside("ann")
    with penstock.connect(f"sqlite:///{tmp_path}/q.db") as client:
        [dead] = client.queue("default").dead_letters()
        found = client.queue("default").get(dead.id)
        assert found is not None
        assert found.errors[0].traceback is not None
        assert "in fail_inside" in found.errors[0].traceback
