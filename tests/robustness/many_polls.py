"""Many who wait, over two servers on one PostgreSQL; and many queues, of which one is busy.

    python tests/robustness/many_polls.py polls --polls 1000
    python tests/robustness/many_polls.py queues --queues 10000

`polls`: long polls wait at both servers, for one queue; then messages are pushed to both, one by one. Each is to be
answered with a message of its own, within 100 ms of its push. `queues`: leases from a namespace in which one queue is
busy, on PostgreSQL and on SQLite: first when all others are new, then right after all of them were used and emptied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.commands import Ack, Configure, Lease, Push, SettleItem
from penstock.model import LeasedMessage, NewMessage, QueueOptions
from penstock.store.postgres import PostgresStore
from penstock.store.protocol import Store
from penstock.store.sqlite import SqliteStore
from tests.integration.serving import Process, process
from tests.postgres import Cluster
from tests.robustness.disconnects import is_whole, request

LIMIT_MS = 100
LEASE_LIMIT_MS = 10
PUSHERS = 4
CYCLES = 1_000
QUEUES_AT_ONCE = 500


def summary(name: str, seconds: list[float]) -> str:
    ms = sorted(each * 1000 for each in seconds)
    p50, p99 = ms[len(ms) // 2], ms[min(len(ms) - 1, len(ms) * 99 // 100)]
    return f"{name}: {len(ms)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {ms[-1]:.1f} ms"


class Polls:
    def __init__(self, servers: list[Process], count: int) -> None:
        self._ports = [server.port for server in servers]
        self._count = count
        self.pushed_at: dict[int, float] = {}
        """By payload: when its push was sent."""
        self.came_at: dict[int, float] = {}
        self.doubled = 0

    async def run(self, rate_per_s: float) -> None:
        polls = [asyncio.create_task(self._poll(self._ports[n % len(self._ports)])) for n in range(self._count)]
        while await self._waiting() < self._count:
            await asyncio.sleep(0.1)
        begun = time.perf_counter()
        await asyncio.gather(*(self._push(number, begun, rate_per_s) for number in range(PUSHERS)))
        await asyncio.gather(*polls)

    async def _poll(self, port: int) -> None:
        answer = await self._ask(port, request("/queues/q/poll?wait_ms=60000"))
        now = time.perf_counter()
        for message in answer["messages"]:
            self.doubled += message["payload"] in self.came_at
            self.came_at[message["payload"]] = now

    async def _push(self, pusher: int, begun: float, rate_per_s: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[pusher % len(self._ports)])
        for number in range(pusher, self._count, PUSHERS):
            await asyncio.sleep(begun + number / rate_per_s - time.perf_counter())
            self.pushed_at[number] = time.perf_counter()
            writer.write(request("/queues/q/messages", json.dumps({"payload": number}).encode()))
            await self._read(reader)
        writer.close()

    async def _waiting(self) -> int:
        """How many polls wait by now."""
        total = 0
        for port in self._ports:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            text = (await self._read(reader)).decode()
            total += sum(
                int(float(line.split()[1]))
                for line in text.splitlines()
                if line.startswith("penstock_long_polls_open ")
            )
            writer.close()
        return total

    async def _ask(self, port: int, asked: bytes) -> dict[str, list[dict[str, int]]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked)
        answer: dict[str, list[dict[str, int]]] = json.loads(await self._read(reader))
        writer.close()
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        received = bytearray()
        while not is_whole(received):
            received += await reader.read(65_536)
        return bytes(received.partition(b"\r\n\r\n")[2])


def measure_polls(url: str, count: int, rate_per_s: float) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 3 * count), hard), hard))
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers.append(stack.enter_context(process(folder, "--store", url, "--no-access-log")))
        with servers[0].client() as client:
            client.queue("q")
        polls = Polls(servers, count)
        asyncio.run(polls.run(rate_per_s))
    waits = [came - polls.pushed_at[number] for number, came in polls.came_at.items()]
    late = sum(each * 1000 > LIMIT_MS for each in waits)
    print(summary("polls answered after their push", waits))
    print(f"{late} later than {LIMIT_MS} ms, {polls.doubled} messages to two, {count - len(waits)} not answered")
    return not late and not polls.doubled and len(waits) == count


def measure_queues(store: Store, what: str, count: int) -> bool:
    names = [f"n/t/q{number}" for number in range(count)]
    begun = time.perf_counter()
    for some in chunks(names):
        store.apply([Configure(queue=name, changes={}, create=QueueOptions()) for name in some])
    print(f"{what}: {count} queues made in {time.perf_counter() - begun:.1f} s", flush=True)
    fine = lease_from_namespace(store, f"{what}: leases from a namespace of {count} queues, one busy")
    begun = time.perf_counter()
    for some in chunks(names):
        store.apply([Push(queue=name, messages=[NewMessage(payload=b"x" * 200)]) for name in some])
        leases = store.apply([Lease(queue=name) for name in some])
        store.apply([ack(message) for leased in leases for message in leased.messages])
    print(f"{what}: all of them used and emptied in {time.perf_counter() - begun:.1f} s", flush=True)
    return fine & lease_from_namespace(store, f"{what}: the same, right after")


def chunks(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), QUEUES_AT_ONCE):
        yield names[start : start + QUEUES_AT_ONCE]


def ack(message: LeasedMessage) -> Ack:
    return Ack(queue=message.queue, items=[SettleItem(message.id, message.token)])


def lease_from_namespace(store: Store, what: str) -> bool:
    leases: list[float] = []
    for _ in range(CYCLES):
        store.apply([Push(queue="n/t/q0", messages=[NewMessage(payload=b"x" * 200)])])
        begun = time.perf_counter()
        (leased,) = store.apply([Lease(scope="n")])
        leases.append(time.perf_counter() - begun)
        store.apply([ack(message) for message in leased.messages])
        assert len(leased.messages) == 1
    print(summary(what, leases), flush=True)
    return sorted(leases)[CYCLES * 99 // 100] * 1000 < LEASE_LIMIT_MS


def measure_both(url: str, count: int) -> bool:
    with closing(PostgresStore(url)) as store:
        fine = measure_queues(store, "PostgreSQL", count)
    with tempfile.TemporaryDirectory() as folder, closing(SqliteStore(Path(folder) / "penstock.db")) as file:
        return fine & measure_queues(file, "SQLite", count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["polls", "queues"])
    parser.add_argument("--polls", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0, help="pushes a second")
    chosen = parser.parse_args()
    database = Cluster(synced=True)
    try:
        if chosen.what == "polls":
            fine = measure_polls(database.url, chosen.polls, chosen.rate)
        else:
            fine = measure_both(database.url, chosen.queues)
    finally:
        database.remove()
    sys.exit(not fine)


if __name__ == "__main__":
    main()
