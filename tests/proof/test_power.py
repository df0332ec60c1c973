"""A power cut takes nothing back that was answered: no push, no ack, no take, no record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.serving import Client
from tests.proof.disk import compiler
from tests.proof.world import WORLDS, World

pytestmark = pytest.mark.skipif(compiler() is None, reason="the disk is compiled where there is a C compiler")
CUTS = 3
EACH = 15


def ask(client: Client, method: str, path: str, body: object = None) -> object:
    answer = client.ask(method, path, body)
    assert answer.status in (200, 201), answer
    return answer.json


def work(world: World, number: int) -> dict[str, set[str]]:
    """What was answered: pushed, and acked, taken and appended."""
    done: dict[str, set[str]] = {"pushed": set(), "acked": set(), "taken": set(), "appended": set()}
    with Client("127.0.0.1", world.servers[0].port) as client:
        for name in (f"{number}-{each}" for each in range(EACH)):
            ask(client, "POST", "/queues/q/messages", {"payload": name})
            done["pushed"].add(name)
            ask(client, "POST", "/v1/messages", {"body": name})
            ask(client, "POST", "/streams/s/records", {"records": [name]})
            done["appended"].add(name)
            if random.Random(name).random() < 0.5:
                (message,) = ask(client, "POST", "/queues/q/poll?wait_ms=0")["messages"]  # type: ignore[index]
                ask(client, "POST", "/queues/q/ack", {"id": message["id"], "token": message["token"]})
                done["acked"].add(message["payload"])
                (taken,) = ask(client, "GET", "/v1/messages")  # type: ignore[misc]
                done["taken"].add(taken["body"])
    return done


@pytest.mark.timeout(200)
@pytest.mark.parametrize("store", list(WORLDS))
def test_a_power_cut_takes_back_nothing_that_was_answered(store: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    world = WORLDS[store](tmp_path / "world", random.Random(1))
    total: dict[str, set[str]] = {"pushed": set(), "acked": set(), "taken": set(), "appended": set()}
    try:
        with Client("127.0.0.1", world.servers[0].port) as client:
            client.queue("q")
            ask(client, "POST", "/streams", {"name": "s"})
        for number in range(CUTS):
            for name, done in work(world, number).items():
                total[name] |= done
            world.power_cut()
            world.wait_until_healed()
        with Client("127.0.0.1", world.servers[0].port) as client:
            left = {m["payload"] for m in ask(client, "GET", "/queues/q/peek?limit=1000")["messages"]}  # type: ignore[index]
            assert left == total["pushed"] - total["acked"]
            inbox = {m["body"] for m in ask(client, "GET", "/v1/messages?limit=1000")}  # type: ignore[attr-defined]
            assert inbox == total["pushed"] - total["taken"]
            records = ask(client, "GET", "/streams/s/records?from=0&limit=1000")["records"]  # type: ignore[index]
            assert {record["data"] for record in records} == total["appended"]
    finally:
        world.close()
