"""Compares the logs of killed processes with the queue, and reports lost, duplicated and undone operations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.crash.workers import LEASE_SECONDS

# The tolerance for timestamps, which each process rounds to milliseconds.
CLOCK_MS = 2
COLUMNS = ("attempted", "acknowledged", "lost", "duplicated", "recovered", "unexpected")


@dataclass
class Delivery:
    payload: str
    sent_at: int
    received_at: int
    settled: str = ""
    """The last logged event of the delivery: ack, acked, lost-ack, nack, nacked or lost-nack."""


@dataclass
class Accounting:
    """Counts for `put`, `pop` and `ack`. Recovered operations were done, although a kill prevented the response."""

    rows: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    violations: list[str] = field(default_factory=list)

    def add(self, other: Accounting) -> None:
        for name, row in other.rows.items():
            self.rows[name].update(row)
        self.violations += other.violations

    def add_violation(self, row: str, column: str, text: str) -> None:
        self.rows[row][column] += 1
        self.violations.append(f"{row} {column}: {text}")

    def table(self) -> str:
        lines = [" " * 6 + "".join(f"{column:>14}" for column in COLUMNS)]
        lines += [
            f"{name:6}" + "".join(f"{self.rows[name][column]:>14}" for column in COLUMNS)
            for name in ("put", "pop", "ack")
        ]
        return "\n".join(lines)


class Ledger:
    """The logged operations on one queue file."""

    def __init__(self) -> None:
        self.accounting = Accounting()
        self.batches: list[tuple[list[str], bool]] = []
        """The payloads of each put, and True if it was acknowledged."""
        self.deliveries: dict[str, dict[int, Delivery]] = defaultdict(dict)
        """The deliveries of each message id, by retry count."""
        self.ids: dict[str, set[str]] = defaultdict(set)
        """The ids of each payload."""

    def read(self, notes: Iterable[Path]) -> None:
        for path in notes:
            for line in path.read_text().splitlines():
                kind, *fields = line.split(" ")
                self._note(kind, fields, path)
                last = kind
            if path.stat().st_size and last == "put":
                self.batches.append((self._open, False))

    def _note(self, kind: str, fields: list[str], path: Path) -> None:
        rows = self.accounting.rows
        match kind:
            case "put":
                self._open = fields
                rows["put"]["attempted"] += len(fields)
            case "was-put":
                self.batches.append((self._open, True))
                rows["put"]["acknowledged"] += len(fields)
                for payload, id_ in zip(self._open, fields, strict=True):
                    self.ids[payload].add(id_)
            case "pop":
                rows["pop"]["attempted"] += 1
            case "popped":
                rows["pop"]["acknowledged"] += 1
                id_, payload, retries, sent_at, received_at = fields
                self.deliver(id_, payload, int(retries), int(sent_at), int(received_at))
            case "ack" | "acked" | "nack" | "nacked" | "lost-ack" | "lost-nack":
                self.deliveries[fields[0]][int(fields[1])].settled = kind
                rows["ack"]["attempted"] += kind == "ack"
                rows["ack"]["acknowledged"] += kind == "acked"
            case _:
                self.accounting.add_violation("put", "unexpected", f"{path.name}: {kind} {' '.join(fields)}")

    def deliver(self, id_: str, payload: str, retries: int, sent_at: int, received_at: int) -> None:
        self.ids[payload].add(id_)
        if retries in self.deliveries[id_]:
            self.accounting.add_violation("pop", "duplicated", f"{id_} was delivered twice as attempt {retries + 1}")
        self.deliveries[id_][retries] = Delivery(payload, sent_at, received_at)

    def settle(self, drained: set[str]) -> Accounting:
        """Check all operations against the messages that were left in the queue."""
        self._check_puts()
        for id_, by_number in self.deliveries.items():
            self._check_leases(id_, sorted(by_number.items()))
            self._check_end(id_, sorted(by_number.items()), drained)
        return self.accounting

    def _check_puts(self) -> None:
        put = {payload for payloads, _ in self.batches for payload in payloads}
        delivered = {d.payload for numbers in self.deliveries.values() for d in numbers.values()}
        for payloads, answered in self.batches:
            missing = [payload for payload in payloads if payload not in delivered]
            if answered:
                for payload in missing:
                    self.accounting.add_violation("put", "lost", f"{payload} ({self.ids[payload]}) was never delivered")
            elif missing and len(missing) < len(payloads):
                self.accounting.add_violation("put", "unexpected", f"only part of a batch was stored: {payloads}")
            else:
                self.accounting.rows["put"]["recovered"] += len(payloads) - len(missing)
        for payload, ids in self.ids.items():
            if len(ids) > 1:
                self.accounting.add_violation("put", "duplicated", f"{payload} is stored as {ids}")
        for payload in delivered - put:
            self.accounting.add_violation("pop", "unexpected", f"{payload} was never put")

    def _check_leases(self, id_: str, deliveries: list[tuple[int, Delivery]]) -> None:
        for (_, earlier), (_, later) in pairwise(deliveries):
            was_nacked = earlier.settled in ("nack", "nacked")
            held_until = earlier.sent_at + LEASE_SECONDS * 1000 - CLOCK_MS
            if not was_nacked and later.received_at < held_until:
                early_ms = held_until - later.received_at
                self.accounting.add_violation("pop", "duplicated", f"{id_} was leased twice, {early_ms} ms too early")
            self.accounting.rows["pop"]["recovered"] += not was_nacked

    def _check_end(self, id_: str, deliveries: list[tuple[int, Delivery]], drained: set[str]) -> None:
        acks = [number for number, delivery in deliveries if delivery.settled == "acked"]
        last_number, last = deliveries[-1]
        if len(acks) > 1:
            self.accounting.add_violation("ack", "duplicated", f"{id_} was acked as deliveries {acks}")
        if acks and (acks[-1] != last_number or id_ in drained):
            self.accounting.add_violation("ack", "lost", f"{id_} was redelivered after its ack")
        if not acks and id_ not in drained:
            if last.settled == "ack":
                self.accounting.rows["ack"]["recovered"] += 1
            else:
                self.accounting.add_violation(
                    "put", "lost", f"{id_} is gone; last event: {last.settled or 'delivered'}"
                )
