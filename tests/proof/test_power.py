"""A power cut undoes no acknowledged push, ack, take or record."""

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
    """Push, ack, take and append; return the payloads whose requests were acknowledged."""
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


@pytest.mark.timeout(200)
@pytest.mark.parametrize("killed", [False, True], ids=["going on", "killed"])
def test_after_a_failed_fsync_a_power_cut_undoes_nothing_that_was_acknowledged(killed: bool, tmp_path: Path) -> None:
    """Leases are not fsynced. After a failed fsync the kernel may drop their WAL frames, and that hole must not make
    SQLite discard later commits that were acknowledged."""
    world = WORLDS["sqlite"](tmp_path / "world", random.Random(2))
    assert world.disk is not None
    (server,) = world.servers
    pushed: set[str] = set()

    def push(client: Client, name: str) -> bool:
        answer = client.ask("POST", "/queues/q/messages", {"payload": name})
        if answer.status == 201:
            pushed.add(name)
        return answer.status == 201

    try:
        with Client("127.0.0.1", server.port) as client:
            client.queue("q", visibility_ms=1)
        for number in range(CUTS):
            with Client("127.0.0.1", server.port) as client:
                assert push(client, f"{number} before")
                ask(client, "POST", "/queues/q/poll?wait_ms=0")
                world.disk.set(syncs_to_fail=1)
                tries = 0
                while world.disk.syncs_left_to_fail() and push(client, f"{number} meanwhile {tries}"):
                    tries += 1
                world.disk.heal()
            if killed:
                server.kill()
                server.start()
                world.wait_until_healed()
            with Client("127.0.0.1", server.port) as client:
                for each in range(EACH):
                    assert push(client, f"{number} after {each}")
            world.power_cut()
            world.wait_until_healed()
            with Client("127.0.0.1", server.port) as client:
                answer = ask(client, "GET", "/queues/q/peek?limit=1000")
                left = {message["payload"] for message in answer["messages"]}  # type: ignore[index]
                assert pushed <= left | {m["payload"] for m in _leased(client)}
    finally:
        world.close()


def _leased(client: Client) -> list[dict[str, str]]:
    found: list[dict[str, str]] = ask(client, "GET", "/queues/q/peek?limit=1000&state=leased")["messages"]  # type: ignore[index]
    return found
