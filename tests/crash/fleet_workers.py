"""Producers and consumers that survive every fault and record each response."""

from __future__ import annotations

import random
import threading
import time

import penstock
from penstock import PenstockError, StoreError, Unreachable
from penstock.errors import StoreUnreachable
from tests.crash.fleet_accounting import Delivery, FleetLedger
from tests.crash.workers import LEASE_SECONDS, MANY, now_ms

QUEUE = "q"
# Shorter than a lease, so that no other consumer can ack a message while its first ack is retried.
RETRY_SECONDS = 3
PAUSE_SECONDS = 0.05


class Worker(threading.Thread):
    """A client of a server or of the database itself."""

    def __init__(self, url: str, ledger: FleetLedger, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.ledger = ledger
        self.chance = random.Random(seed)
        self._stop_asked = stop
        self._client = penstock.connect(url, connect_timeout=RETRY_SECONDS, retry_for=RETRY_SECONDS, timeout=15)
        self.queue = self._client.queue(QUEUE)

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                try:
                    self.step()
                    time.sleep(self.chance.uniform(0, 0.01))
                except (Unreachable, StoreError):
                    time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            self.ledger.add_violation("put", "unexpected", f"{type(self).__name__} ended: {error!r}")
            raise
        finally:
            self._client.close()

    def step(self) -> None:
        raise NotImplementedError


class Writer(Worker):
    """Puts one message or a batch, with a delay, a priority or a key."""

    def step(self) -> None:
        chance = self.chance
        way = chance.random()
        payloads = [f"{chance.getrandbits(64):016x}" for _ in range(MANY if way < 0.3 else 1)]
        put = self.ledger.put(payloads)
        try:
            if way < 0.3:
                receipts = self.queue.push_many(payloads)
            elif way < 0.5:
                delay, priority = chance.choice((0.05, 0.5)), chance.randint(-1, 1)
                receipts = [self.queue.push(payloads[0], delay=delay, priority=priority)]
            elif way < 0.6:
                receipts = [self.queue.push(payloads[0], key=payloads[0])]
            else:
                receipts = [self.queue.push(payloads[0])]
        except PenstockError as error:
            reports_outcome = isinstance(error, StoreUnreachable | Unreachable)
            put.kept = "maybe" if error.maybe_done or not reports_outcome else "no"
            raise
        self.ledger.was_put(put, [receipt.id for receipt in receipts])


class Consumer(Worker):
    """Leases messages, then usually acks them, sometimes nacks them, and sometimes lets the lease expire."""

    def step(self) -> None:
        chance, ledger = self.chance, self.ledger
        sent_at = now_ms()
        ledger.count("pop", "attempted")
        messages = self.queue.lease(chance.choice((1, 1, MANY, 4 * MANY)), lease=LEASE_SECONDS, wait=0.3)
        received_at = now_ms()
        deliveries = [Delivery(m.id, m.payload, m.token, sent_at, received_at) for m in messages]
        ledger.popped(deliveries)
        time.sleep(chance.uniform(0, 0.01))
        way = chance.random()
        if not messages or way < 0.03:
            return
        verb = "nack" if way < 0.12 else "ack"
        ledger.settling(verb, deliveries)
        lost = self.queue.ack_many(messages) if verb == "ack" else self.queue.nack_many(messages, delay=0.1)
        ledger.settled(verb, deliveries, {message.id for message in lost})
