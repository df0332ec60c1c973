"""Clients of every API that survive every fault and record requests and answers."""

from __future__ import annotations

import http.client
import random
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import penstock
from penstock import DiskFull, PenstockError, TryLater
from penstock.errors import StoreUnreachable, Unreachable
from tests.crash.workers import MANY
from tests.integration.serving import Answer
from tests.integration.serving import Client as Http
from tests.proof.history import Delivered, Kind, Op, Recorder

LEASE_MS = 3_000
# Shorter than a lease, so that no other consumer can ack a message while its first ack is retried.
RETRY_SECONDS = 1.5
TIMEOUT_SECONDS = 12
PAUSE_SECONDS = 0.05
PLACES: dict[str, Kind] = {
    "orders": "fifo",
    "mixed": "queue",
    "shop/mail/out": "fifo",
    "clicks": "stream",
    "box": "inbox",
}
TREE = {"ns": "shop", "task": "mail", "queue": "out"}
# Too many attempts for any message to become a dead letter, which the checker would mistake for a lost message.
MAX_ATTEMPTS = 900


class Refused(Exception):
    """An error response. `maybe_done` is False only for a 429 or a full disk, which leave no trace of the request."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(repr(answer))
        self.status = answer.status
        body = answer.json if answer.body.startswith(b"{") else {}
        unkept = body.get("code") == "disk_full" or answer.status == 429
        self.maybe_done = bool(body.get("maybe_done")) or not unkept


CALL_ERRORS = (PenstockError, OSError, http.client.HTTPException, Refused)
# The errors that report whether the request may have taken effect.
REPORTS_OUTCOME = (DiskFull, TryLater, StoreUnreachable, Unreachable, Refused)


def prepare(url: str) -> None:
    """Create the queues and the stream that the clients use."""
    options = {"max_attempts": MAX_ATTEMPTS, "backoff": "fixed", "backoff_ms": 100}
    with penstock.connect(url, connect_timeout=30, retry_for=30) as client:
        client.create_queue("orders", **options)
        client.create_queue("mixed", **options)
        client.create_queue("shop/mail/out", lease_ms=LEASE_MS, **options)
        client.create_stream("clicks", segment_bytes=64 << 10)


class Client(threading.Thread):
    def __init__(self, name: str, url: str, recorder: Recorder, seed: int, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.url = url
        self.recorder = recorder
        self.chance = random.Random(seed)
        self.broken: BaseException | None = None
        self._stop_asked = stop
        self._number = 0

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                try:
                    self.step()
                    time.sleep(self.chance.uniform(0, 0.02))
                except CALL_ERRORS:
                    time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            self.broken = error
            raise
        finally:
            self.close()

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def payloads(self, count: int) -> list[str]:
        self._number += count
        return [f"{self.name}-{number}" for number in range(self._number - count, self._number)]

    def call(self, op: Op, ask: Any) -> Any:
        """Record the start of the call and, if it fails, its end; the caller records the result."""
        self.recorder.begin(op)
        try:
            return ask()
        except CALL_ERRORS as error:
            self.recorder.failed(op, error, maybe_done=error.maybe_done if isinstance(error, REPORTS_OUTCOME) else True)
            raise


class SdkClient(Client):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.client = penstock.connect(
            self.url, connect_timeout=RETRY_SECONDS, retry_for=RETRY_SECONDS, timeout=TIMEOUT_SECONDS
        )

    def close(self) -> None:
        self.client.close()


class Writer(SdkClient):
    """Pushes in order to one queue, and with delays, priorities and keys to another."""

    def step(self) -> None:
        chance = self.chance
        place = chance.choice(("orders", "mixed"))
        queue = self.client.queue(place)
        op = Op(self.name, "push", place, 0, payloads=self.payloads(MANY if chance.random() < 0.3 else 1))
        if len(op.payloads) > 1:
            receipts = self.call(op, lambda: queue.push_many(op.payloads))
        elif place == "orders":
            receipts = [self.call(op, lambda: queue.push(op.payloads[0]))]
        elif chance.random() < 0.5:
            receipts = [self.call(op, lambda: queue.push(op.payloads[0], key=op.payloads[0]))]
        else:
            delay, priority = chance.choice((0, 0.05, 0.5)), chance.randint(-1, 1)
            receipts = [self.call(op, lambda: queue.push(op.payloads[0], delay=delay, priority=priority))]
        self.recorder.done(op, ids=[receipt.id for receipt in receipts])


class Consumer(SdkClient):
    """Leases messages, then usually acks them, sometimes nacks them, and sometimes lets the lease expire."""

    def step(self) -> None:
        chance, place = self.chance, self.chance.choice(("orders", "mixed"))
        queue = self.client.queue(place)
        limit = chance.choice((1, MANY, 4 * MANY))
        op = Op(self.name, "lease", place, 0, limit=limit)
        messages = self.call(op, lambda: queue.lease(limit, lease=LEASE_MS / 1000, wait=0.2))
        self.recorder.done(op, delivered=[Delivered(m.id, m.payload, m.token, m.attempts) for m in messages])
        time.sleep(chance.uniform(0, 0.01))
        way = chance.random()
        if not messages or way < 0.02:
            return
        verb = "nack" if way < 0.1 else "ack"
        op = Op(self.name, verb, place, 0, ids=[m.id for m in messages], tokens=[m.token for m in messages])
        settle = queue.ack_many if verb == "ack" else lambda all_: queue.nack_many(all_, delay=0.1)
        lost = self.call(op, lambda: settle(messages))
        op.stale = [message.id for message in lost]
        self.recorder.done(op)


class StreamClient(SdkClient):
    """Appends records and reads the stream from the start."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stream = self.client.stream("clicks")
        self._next = 0

    def step(self) -> None:
        op = Op(self.name, "append", "clicks", 0, payloads=self.payloads(self.chance.choice((1, 1, MANY))))
        appended = self.call(op, lambda: self.stream.append_many(op.payloads))
        self.recorder.done(op, ids=range(appended.first, appended.last + 1))
        op = Op(self.name, "read", "clicks", 0, limit=100)
        page = self.call(op, lambda: self.stream.read(self._next, 100))
        self.recorder.done(op, delivered=[Delivered(record.offset, record.data) for record in page])
        self._next += len(page)


class HttpClient(Client):
    """Calls the HTTP API without retries, so a lost response stays lost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        address = urlsplit(self.url)
        self._address = str(address.hostname), int(address.port or 0)
        self._http: Http | None = None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        if self._http is None:
            self._http = Http(*self._address)
            self._http.connection.timeout = TIMEOUT_SECONDS
        try:
            answer = self._http.ask(method, path, body)
        except BaseException:
            self.close()
            raise
        if answer.status >= 300:
            raise Refused(answer)
        return answer.json if answer.body else {}

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


class TreeClient(HttpClient):
    """Pushes and pops through the tree API, and acks by transaction id."""

    def step(self) -> None:
        op = Op(self.name, "push", "shop/mail/out", 0, payloads=self.payloads(self.chance.choice((1, MANY))))
        items = [{**TREE, "payload": payload} for payload in op.payloads]
        body = {"items": items, "config": {"batchMode": True}}
        pushed = self.call(op, lambda: self.ask("POST", "/api/v1/push", body))["messages"]
        self.recorder.done(op, ids=[each["transactionId"] for each in pushed])
        op = Op(self.name, "lease", "shop/mail/out", 0, limit=MANY)
        popped = self.call(op, lambda: self.ask("GET", f"/api/v1/pop/ns/shop/task/mail/queue/out?batch={MANY}"))
        messages = popped.get("messages", [])
        self.recorder.done(
            op,
            delivered=[
                Delivered(m["transactionId"], m["payload"], m["leaseToken"], m["retryCount"] + 1) for m in messages
            ],
        )
        for message in messages:
            self._ack(message["transactionId"], message["leaseToken"])

    def _ack(self, id_: str, token: str) -> None:
        op = Op(self.name, "ack", "shop/mail/out", 0, ids=[id_], tokens=[token])
        body = {"transactionId": id_, "status": "completed", "leaseToken": token}
        try:
            self.call(op, lambda: self.ask("POST", "/api/v1/ack", body))
        except Refused as error:
            if error.status not in (404, 409):
                raise
            op.stale = [id_]
        self.recorder.done(op)


class InboxClient(HttpClient):
    """Posts to the inbox API and takes messages from it, at most once each."""

    def step(self) -> None:
        (payload,) = self.payloads(1)
        op = Op(self.name, "push", "box", 0, payloads=[payload])
        kept = self.call(op, lambda: self.ask("POST", "/v1/messages", {"body": payload}))
        self.recorder.done(op, ids=[kept["id"]])
        op = Op(self.name, "take", "box", 0, limit=2)
        taken = self.call(op, lambda: self.ask("GET", "/v1/messages?limit=2"))
        self.recorder.done(op, delivered=[Delivered(each["id"], each["body"]) for each in taken])


KINDS: tuple[type[Client], ...] = (Writer, Consumer, StreamClient, TreeClient, InboxClient)
