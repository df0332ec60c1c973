"""Checks the records of clients that survive while servers, database and network fail.

It reports lost, duplicated and undone operations like `accounting`, with two differences. A call may end in an error,
which says whether it may have taken effect. And leases are not fsynced: if the database is killed just after it granted
one, it may lose the lease and redeliver the message early, under another token.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from tests.crash.accounting import CLOCK_MS, Accounting
from tests.crash.workers import LEASE_SECONDS, now_ms

Kept = Literal["yes", "no", "maybe"]


@dataclass(eq=False)
class Put:
    payloads: list[str]
    kept: Kept = "maybe"
    ids: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Delivery:
    id: int
    payload: str
    token: str
    sent_at: int
    received_at: int
    settled: str = ""
    """The last recorded event of the delivery: ack, acked, lost-ack, nack, nacked or lost-nack."""
    settled_at: int = 0


class FleetLedger:
    """The requests of all clients of one database, and the responses to them."""

    def __init__(self) -> None:
        self.accounting = Accounting()
        self.puts: list[Put] = []
        self.deliveries: list[Delivery] = []
        self.crashes: list[tuple[int, int]] = []
        """The time from before each kill of the database until it had recovered."""
        self._lock = threading.Lock()

    def count(self, row: str, column: str, number: int = 1) -> None:
        with self._lock:
            self.accounting.rows[row][column] += number

    def add_violation(self, row: str, column: str, text: str) -> None:
        with self._lock:
            self.accounting.add_violation(row, column, text)

    def put(self, payloads: list[str]) -> Put:
        self.count("put", "attempted", len(payloads))
        noted = Put(payloads)
        self.puts.append(noted)
        return noted

    def was_put(self, put: Put, ids: list[int]) -> None:
        put.kept, put.ids = "yes", ids
        self.count("put", "acknowledged", len(ids))

    def popped(self, deliveries: list[Delivery]) -> None:
        self.count("pop", "acknowledged", len(deliveries))
        self.deliveries += deliveries

    def settling(self, verb: str, deliveries: list[Delivery]) -> None:
        self.count("ack", "attempted", len(deliveries) * (verb == "ack"))
        for each in deliveries:
            each.settled = verb

    def settled(self, verb: str, deliveries: list[Delivery], lost: set[int]) -> None:
        at = now_ms()
        for each in deliveries:
            each.settled = f"lost-{verb}" if each.id in lost else f"{verb}ed"
            each.settled_at = at
        self.count("ack", "acknowledged", (len(deliveries) - len(lost)) * (verb == "ack"))

    # The checks at the end.

    def settle(self, drained: set[int]) -> Accounting:
        """Check all operations against the messages that were left in the queue."""
        self._check_puts()
        by_id: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.deliveries, key=lambda each: each.received_at):
            by_id[delivery.id].append(delivery)
        for id_, deliveries in by_id.items():
            self._check_leases(id_, deliveries)
            self._check_end(id_, deliveries, drained)
        return self.accounting

    def _check_puts(self) -> None:
        ids: dict[str, set[int]] = defaultdict(set)
        for delivery in self.deliveries:
            ids[delivery.payload].add(delivery.id)
        known = {payload for put in self.puts for payload in put.payloads}
        for put in self.puts:
            found = [payload for payload in put.payloads if payload in ids]
            self._check_put(put, found)
            for payload, id_ in zip(put.payloads, put.ids, strict=False):
                ids[payload].add(id_)
        for payload, several in ids.items():
            if len(several) > 1:
                self.add_violation("put", "duplicated", f"{payload} is stored as {several}")
        for payload in ids.keys() - known:
            self.add_violation("pop", "unexpected", f"{payload} was never put")

    def _check_put(self, put: Put, found: list[str]) -> None:
        if put.kept == "yes":
            for payload in set(put.payloads) - set(found):
                self.add_violation("put", "lost", f"{payload} ({put.ids}) was never delivered")
        elif put.kept == "no" and found:
            self.add_violation("put", "unexpected", f"reported as not stored, but found: {found}")
        elif 0 < len(found) < len(put.payloads):
            self.add_violation("put", "unexpected", f"only part of a batch was stored: {put.payloads}")
        else:
            self.count("put", "recovered", len(found))

    def _check_leases(self, id_: int, deliveries: list[Delivery]) -> None:
        tokens = [delivery.token for delivery in deliveries]
        if len(set(tokens)) < len(tokens):
            self.add_violation("pop", "duplicated", f"{id_} was delivered twice with one token")
        for earlier, later in pairwise(deliveries):
            was_nacked = earlier.settled in ("nack", "nacked")
            held_until = earlier.sent_at + LEASE_SECONDS * 1000 - CLOCK_MS
            if (
                not was_nacked
                and later.received_at < held_until
                and not self._crashed(earlier.sent_at, later.received_at)
            ):
                early_ms = held_until - later.received_at
                self.add_violation("pop", "duplicated", f"{id_} was leased twice, {early_ms} ms too early")
            self.count("pop", "recovered", not was_nacked)

    def _crashed(self, after: int, before: int) -> bool:
        return any(begun <= before and after <= ended for begun, ended in self.crashes)

    def _check_end(self, id_: int, deliveries: list[Delivery], drained: set[int]) -> None:
        acked = [delivery for delivery in deliveries if delivery.settled == "acked"]
        if len(acked) > 1 and not self._crashed(acked[0].sent_at, acked[-1].received_at):
            self.add_violation("ack", "duplicated", f"{id_} was acked {len(acked)} times")
        if acked:
            self._check_acked(id_, acked[0], deliveries, drained)
        elif id_ not in drained:
            if any(delivery.settled == "ack" for delivery in deliveries):
                self.count("ack", "recovered")
            else:
                self.add_violation("put", "lost", f"{id_} is gone; last event: {deliveries[-1].settled or 'delivered'}")

    def _check_acked(self, id_: int, acked: Delivery, deliveries: list[Delivery], drained: set[int]) -> None:
        # After a crash lost a lease, its client may still hold the message while another client acks it.
        again = any(
            each.sent_at > acked.settled_at
            or (each.received_at > acked.settled_at and not self._crashed(each.sent_at, each.received_at))
            for each in deliveries
        )
        if again or id_ in drained:
            self.add_violation("ack", "lost", f"{id_} was redelivered after its ack")
