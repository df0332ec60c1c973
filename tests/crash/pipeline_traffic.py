"""Clients of a server that is killed now and then; they record the fate of each message."""

from __future__ import annotations

import http.client
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.integration.serving import Client

BATCH = 100
QUEUES = {
    "plain": {},
    "retried": {"max_attempts": 2, "backoff": "fixed", "backoff_ms": 0},
    "kept": {"archive_ms": 60_000},
    "short/lived/leases": {"visibility_ms": 700, "max_attempts": 3},
}
ERRORS = ("no user 4711", "no user 12", "host '10.0.0.1' refused", "timeout after 30 s")
TROUBLE = (OSError, http.client.HTTPException)
PAUSE_SECONDS = 0.05


@dataclass
class History:
    """What clients were told; who was not answered does not know."""

    attempted: set[str] = field(default_factory=set)
    """Payloads of all pushes, also of those without an answer."""
    pushed: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By id: queue and payload."""
    acked: dict[int, int] = field(default_factory=dict)
    """By id: which delivery it was."""
    nacked: dict[tuple[int, int], str] = field(default_factory=dict)
    """By id and delivery: the error."""


class Traffic:
    """Some clients that share a history, and push no more than they are allowed to."""

    def __init__(self, ports: list[int], clients: int, seed: int) -> None:
        self.history = History()
        self.allowed = 0
        self.given = 0
        self.turn = threading.Lock()
        self.stop = threading.Event()
        self.clients = [Consumer(self, ports[number % len(ports)], number, seed + number) for number in range(clients)]
        for client in self.clients:
            client.start()

    def take(self, wanted: int) -> int:
        """How many may be pushed now."""
        with self.turn:
            count = max(0, min(wanted, self.allowed - self.given))
            self.given += count
            return count

    def give_back(self, count: int) -> None:
        """There was no answer."""
        with self.turn:
            self.given -= count

    def close(self) -> None:
        self.stop.set()
        for client in self.clients:
            client.join()
        for client in self.clients:
            if client.error is not None:
                raise client.error


class Consumer(threading.Thread):
    """Pushes, leases, then acks most, nacks some and forgets a few; when the server is gone, asks again."""

    def __init__(self, traffic: Traffic, port: int, number: int, seed: int) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._traffic, self._number, self._port = traffic, number, port
        self._chance = random.Random(seed)
        self._count = 0
        self._client: Client | None = None

    def run(self) -> None:
        while not self._traffic.stop.is_set():
            try:
                if self._client is None:
                    self._client = Client("127.0.0.1", self._port)
                self._work(self._chance.choice(list(QUEUES)))
            except TROUBLE:
                if self._client is not None:
                    self._client.close()
                self._client = None
                time.sleep(PAUSE_SECONDS)
            except BaseException as error:
                self.error = error
                return

    def _work(self, queue: str) -> None:
        path = "/queues/" + queue.replace("/", "%2F")
        count = self._traffic.take(self._chance.randint(1, BATCH))
        if count:
            self._push(path, queue, count)
        leased = self._ask(f"{path}/poll?batch={BATCH}&wait_ms=0")["messages"]
        if not leased and not count:
            time.sleep(PAUSE_SECONDS)
        if self._chance.random() < 0.02:
            return  # Their leases lapse.
        rejected = leased[: len(leased) // self._chance.choice((3, 10, 1000))]
        self._nack(path, rejected)
        self._ack(path, leased[len(rejected) :])

    def _push(self, path: str, queue: str, count: int) -> None:
        payloads = [f"{self._number} {self._count + number} ".ljust(120, "x") for number in range(count)]
        self._count += count
        with self._traffic.turn:
            self._traffic.history.attempted.update(payloads)
        try:
            ids = self._ask(f"{path}/messages", {"messages": [{"payload": each} for each in payloads]})["message_ids"]
        except TROUBLE:
            self._traffic.give_back(count)
            raise
        with self._traffic.turn:
            self._traffic.history.pushed.update(
                (id_, (queue, payload)) for id_, payload in zip(map(int, ids), payloads, strict=True)
            )

    def _ack(self, path: str, leased: list[dict[str, Any]]) -> None:
        if leased:
            self._traffic.history.acked.update(self._settle(f"{path}/ack", leased, {}))

    def _nack(self, path: str, leased: list[dict[str, Any]]) -> None:
        if leased:
            error = self._chance.choice(ERRORS)
            done = self._settle(f"{path}/nack", leased, {"error": error})
            self._traffic.history.nacked.update(dict.fromkeys(done.items(), error))

    def _settle(self, path: str, leased: list[dict[str, Any]], rest: dict[str, Any]) -> dict[int, int]:
        items = [{"id": each["id"], "token": each["token"], **rest} for each in leased]
        results = self._ask(path, {"items": items})["results"]
        deliveries = {int(each["id"]): each["attempts"] for each in leased}
        return {int(each["id"]): deliveries[int(each["id"])] for each in results if each["result"] == "ok"}

    def _ask(self, path: str, body: Any = None) -> Any:
        assert self._client is not None
        answer = self._client.post(path, body)
        if answer.status in (429, 503):
            raise ConnectionError(answer)
        assert answer.status in (200, 201), answer
        return answer.json
