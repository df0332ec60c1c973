"""The demo shop's programs, each a loop on its own thread that uses the API that suits it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.client._sync.client import Client, connect
from penstock.client._sync.message import LeasedMessage
from penstock.errors import PenstockError

NAMES = ("ada", "bob", "cy", "dee", "eli", "fay", "gus", "hal")
PAGES = ("home", "search", "cart", "checkout", "help")
TROUBLES = ("connection to 10.0.0.{n} timed out", "mailbox {n} is full", "rate limit of account {n} reached")


class Shop:
    """Runs all programs; `pace` scales every pause."""

    def __init__(self, url: str, *, pace: float = 1.0, seed: int = 1) -> None:
        self._pace = pace
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._client: Client = connect(url, retry_for=0)
        self._mailer: Client = connect(url, retry_for=0, worker="mailer")
        self._reminder: Client = connect(url, retry_for=0, worker="reminder")
        self._threads: list[threading.Thread] = []
        self.done = dict.fromkeys(("orders", "emails", "failures", "reminders", "notes", "clicks", "read"), 0)
        self.errors: list[str] = []

    def open(self) -> None:
        client = self._client
        self._emails = client.create_queue("emails", exist_ok=True, max_attempts=3, backoff_ms=500)
        self._reminders = client.create_queue("reminders", exist_ok=True)
        self._clicks = client.create_stream("clicks", exist_ok=True)
        options = {"leaseTime": 30, "retryLimit": 3, "priority": 5}
        self._request("POST", "/api/v1/configure", {"ns": "shop", "task": "orders", "queue": "new", "options": options})
        programs: tuple[Callable[[], None], ...] = (
            self._order, self._pack, self._write, self._send, self._remind, self._note, self._click,
            lambda: self._read("billing", 200), lambda: self._read("search", 5),
        )  # fmt: skip
        for number, program in enumerate(programs):
            thread = threading.Thread(target=self._repeat, args=(program,), name=f"shop-{number}")
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for client in (self._client, self._mailer, self._reminder):
            client.close()

    def _repeat(self, program: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                program()
            except (PenstockError, OSError) as error:
                if not self._stop.is_set():
                    self.errors.append(f"{type(error).__name__}: {error}")
                    self._pause(1)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds * self._pace * self._chance.uniform(0.5, 1.5))

    # Tree API: orders, popped by namespace

    def _order(self) -> None:
        many = self._chance.randint(1, 5)
        item = {"ns": "shop", "task": "orders", "queue": "new"}
        items = [{**item, "payload": {"customer": self._chance.choice(NAMES), "total": 10}} for _ in range(many)]
        self._request("POST", "/api/v1/push", {"items": items})
        self._pause(0.2)

    def _pack(self) -> None:
        popped = self._request("GET", "/api/v1/pop/ns/shop?batch=10&wait=true&timeout=1000&worker=packer")
        for message in [] if popped is None else popped["messages"]:
            self._pause(0.02)
            good = self._chance.random() > 0.05
            answer = {"transactionId": message["transactionId"], "status": "completed" if good else "failed"}
            self._request("POST", "/api/v1/ack", answer if good else answer | {"error": "out of stock"})
            self.done["orders"] += good

    # Queue API, with the SDK: emails that fail and are retried, delayed reminders

    def _write(self) -> None:
        self._emails.push({"to": f"{self._chance.choice(NAMES)}@example.com"}, priority=self._chance.randint(0, 2))
        self._reminders.push({"to": self._chance.choice(NAMES)}, delay=self._chance.uniform(1, 20) * self._pace)
        self._pause(0.15)

    def _send(self) -> None:
        for message in self._mailer.queue("emails").consume(batch=5, idle=1):
            self._pause(0.03)
            with suppress(RuntimeError), message:
                self._deliver(message)
            if self._stop.is_set():
                return

    def _deliver(self, message: LeasedMessage) -> None:
        if self._chance.random() < 0.25:
            self.done["failures"] += 1
            raise RuntimeError(self._chance.choice(TROUBLES).format(n=self._chance.randint(1, 254)))
        self.done["emails"] += 1

    def _remind(self) -> None:
        for message in self._reminder.queue("reminders").consume(batch=10, idle=1):
            message.ack()
            self.done["reminders"] += 1
            if self._stop.is_set():
                return

    # Inbox API

    def _note(self) -> None:
        self._request("POST", "/v1/messages", {"body": f"call {self._chance.choice(NAMES)} back", "topic": "desk"})
        self.done["notes"] += len(self._request("GET", "/v1/messages?topic=desk&limit=10") or [])
        self._pause(1)

    # A stream with a fast and a slow consumer

    def _click(self) -> None:
        self._clicks.append_many([{"page": self._chance.choice(PAGES)} for _ in range(self._chance.randint(1, 20))])
        self.done["clicks"] += 1
        self._pause(0.2)

    def _read(self, consumer: str, limit: int) -> None:
        records = self._clicks.next(consumer, limit, wait=1)
        if records:
            self._clicks.commit(consumer, records[-1].offset)
            self.done["read"] += len(records)
        self._pause(0.1)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request of an API that the SDK has no methods for."""
        transport = self._client.transport
        assert transport.kind == "server"
        answer, _ = transport.session.request(method, path, body, repeatable=False)
        return json.loads(answer.body) if answer.body else None
