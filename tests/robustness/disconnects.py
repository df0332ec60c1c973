"""Clients that disconnect at any moment of a long poll lose no message.

    python tests/robustness/disconnects.py --rounds 10000

Each round opens a socket, polls, and disconnects after a random time by FIN or by RST, while a message is pushed at
another random time. A message may be delayed until its lease expires only if its response was already in the kernel's
send buffer. The server's log shows how many responses were sent, and the counts must agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.integration.serving import Client, Process, process

LEASE_MS = 3_000
MOMENT_SECONDS = 0.06
SMALL, LARGE = "x" * 200, "x" * 500_000
RESET = struct.pack("ii", 1, 0)


@dataclass
class Counts:
    polls: int = 0
    pushed: int = 0
    # Complete responses that a client read before it disconnected, and acked.
    delivered: int = 0
    disconnected_before_lease: int = 0
    released: int = 0
    # Messages delayed until their lease expired.
    sent_before_disconnect: int = 0
    lost: int = 0
    seconds: float = 0.0

    def check(self, lapsed: int) -> None:
        assert self.lost == 0, self
        assert lapsed == self.sent_before_disconnect, (lapsed, self)


class Lane:
    """A client with its own queue, so that the message of a round can only go to the client of that round."""

    def __init__(self, port: int, number: int, counts: Counts) -> None:
        self._port = port
        self.queue = f"lane{number}"
        self._payload = LARGE if number % 10 == 9 else SMALL
        self._counts = counts
        self._random = random.Random(number)

    async def round(self) -> None:
        pushing = asyncio.create_task(self._push_soon())
        await self._poll_and_go()
        await pushing

    async def _push_soon(self) -> None:
        await asyncio.sleep(self._random.uniform(0, MOMENT_SECONDS / 2))
        body = json.dumps({"payload": self._payload}).encode()
        await self._ask(f"/queues/{self.queue}/messages", body)
        self._counts.pushed += 1

    async def _poll_and_go(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        leave_at = loop.time() + self._random.uniform(0, MOMENT_SECONDS)
        received = bytearray()
        try:
            async with asyncio.timeout_at(leave_at):
                await loop.sock_sendall(sock, request(f"/queues/{self.queue}/poll?wait_ms=5000"))
                while not is_whole(received):
                    received += await loop.sock_recv(sock, 65_536)
        except TimeoutError:
            pass
        finally:
            if self._random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()
        self._counts.polls += 1
        if is_whole(received):
            [message] = json.loads(received.partition(b"\r\n\r\n")[2])["messages"]
            await self._ack(message)
            self._counts.delivered += 1

    async def _ack(self, message: dict[str, Any]) -> None:
        body = json.dumps({"id": message["id"], "token": message["token"]}).encode()
        await self._ask(f"/queues/{self.queue}/ack", body)

    async def _ask(self, path: str, body: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request(path, body))
        status = await reader.readline()
        assert status.split()[1] in (b"200", b"201"), status + await reader.read(2_000)
        writer.close()

    def drain(self, client: Client, deadline: float) -> int:
        """Ack everything that is left, waiting for leases to expire, and return the number of messages."""
        found = 0
        while time.monotonic() < deadline:
            stats = client.get(f"/queues/{self.queue}/stats").json
            if not stats["ready"] + stats["leased"]:
                break
            for message in client.post(f"/queues/{self.queue}/poll?wait_ms=4000&batch=10").json["messages"]:
                item = {"id": message["id"], "token": message["token"]}
                assert client.post(f"/queues/{self.queue}/ack", item).status == 200
                found += 1
        return found


def request(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def is_whole(answer: bytearray) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(length) and len(body) >= int(length)


async def run_rounds(lanes: list[Lane], rounds: int) -> None:
    async def stay(lane: Lane, count: int) -> None:
        for _ in range(count):
            await lane.round()

    share, rest = divmod(rounds, len(lanes))
    await asyncio.gather(*(stay(lane, share + (number < rest)) for number, lane in enumerate(lanes)))


def measure(server: Process, rounds: int, lanes_count: int) -> Counts:
    counts = Counts()
    lanes = [Lane(server.port, number, counts) for number in range(lanes_count)]
    with server.client() as client:
        for lane in lanes:
            client.queue(lane.queue, visibility_ms=LEASE_MS, max_attempts=1_000)
    started = time.monotonic()
    asyncio.run(run_rounds(lanes, rounds))
    counts.seconds = round(time.monotonic() - started, 1)
    answers = wait_for_answers(server, counts.polls)
    # This client is opened only now, because the server closes connections that stay idle for that long.
    with server.client() as client:
        deadline = time.monotonic() + 120
        drained = sum(lane.drain(client, deadline) for lane in lanes)
        totals = [client.get(f"/queues/{lane.queue}/stats").json["totals"] for lane in lanes]
        released = metric(client, "penstock_leases_given_back_total")
    left = sum(1 for status, rows in answers if status == 200 and rows)
    counts.released = int(released)
    counts.sent_before_disconnect = left - counts.delivered
    counts.disconnected_before_lease = counts.polls - left - counts.released
    counts.lost = counts.pushed - counts.delivered - drained
    leases = sum(each["leased"] for each in totals)
    assert leases == left + counts.released + drained, (leases, left, counts, drained)
    counts.check(lapsed=sum(each["lapsed"] for each in totals))
    return counts


def wait_for_answers(server: Process, polls: int) -> list[tuple[int, int | None]]:
    """Return the log line of each poll. Polls that the server never began to read have none."""
    seen = -1
    while True:
        answers = [(line["status"], line["rows"]) for line in server.lines() if line.get("route", "").endswith("/poll")]
        if len(answers) == seen or len(answers) == polls:
            return answers
        seen = len(answers)
        time.sleep(1)


def metric(client: Client, name: str) -> float:
    lines = client.get("/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=50, help="clients at a time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, process(Path(folder)) as server:
        counts = measure(server, arguments.rounds, arguments.lanes)
    for name, value in asdict(counts).items():
        print(f"{name.replace('_', ' '):<28}{value:>10}")


if __name__ == "__main__":
    main()
