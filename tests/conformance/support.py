"""The store under test with a movable clock, and short helpers for common commands."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.core.commands import (
    Ack,
    Command,
    Configure,
    Extend,
    Lease,
    Leased,
    Nack,
    Push,
    Redrive,
    RedriveOutcome,
    Release,
    Settled,
    SettledAll,
    SettleItem,
    Sweep,
    Swept,
    Take,
)
from penstock.core.model import Delivery, PushItem, PushReceipt, QueueInfo, QueueOptions, State, StoredMessage
from penstock.errors import PenstockError
from penstock.journal.drainer import journal_folder
from penstock.store.interface import Store
from penstock.store.sqlite import SqliteStore
from tests.conformance.recount import check_tables
from tests.conformance.replay import check_journal

# The first millisecond of a minute.
START_MS = 1_700_000_040_000
MINUTE_MS = 60_000
PATIENCE_SECONDS = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = START_MS
        self._leapt = 0

    def __call__(self) -> int:
        return self.now

    def monotonic(self) -> float:
        """Return the elapsed time in seconds, unaffected by `set`."""
        return (self.now - self._leapt) / 1000

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms

    def set(self, ms: int) -> None:
        """Set the clock, as an administrator or NTP would."""
        self._leapt += ms - self.now
        self.now = ms


class StoreUnderTest:
    """Wraps a store and forwards to it. Commands go to queue `q` unless a test names another."""

    _journal = True

    def __init__(self, path: Path | str, *, persists: bool) -> None:
        self.path = path
        self.persists = persists
        self.clock = Clock()
        self._opened: list[Store] = []
        self.store: Store = self.open_another()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def open_another(self) -> Store:
        """Open another store on the same database, as another process would."""
        # Power cuts are covered by the crash tests. Waiting for fsync here would only slow the tests down.
        how: dict[str, Any] = {"durability": "relaxed", "journal": self._journal}
        store = SqliteStore(self.path, clock=self.clock, monotonic=self.clock.monotonic, **how)
        self._opened.append(store)
        return store

    def check(self) -> None:
        """Check the tables directly, unless the store is in memory."""
        if self.persists:
            with closing(sqlite3.connect(self.path)) as db:
                check_tables(db)
                if self._journal:
                    check_journal(db, journal_folder(self.path))

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open_another()

    def switch_journal(self, on: bool) -> None:
        """Reopen the store with the journal on or off."""
        self._journal = on
        self.reopen()

    def close_all(self) -> None:
        self.check()
        for store in self._opened:
            store.close()

    def do(self, command: Command[Any]) -> Any:
        (outcome,) = self.store.apply([command])
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    def make(self, queue: str = "q", **options: Any) -> QueueInfo:
        """Create a queue with these options, or change its options."""
        info: QueueInfo = self.do(Configure(queue=queue, changes=options, create=QueueOptions())).info
        return info

    def send(self, *messages: PushItem, queue: str = "q", **how: Any) -> list[PushReceipt]:
        receipts: list[PushReceipt] = self.do(
            Push(queue=queue, messages=messages, create=QueueOptions(), **how)
        ).receipts
        return receipts

    def push(self, *payloads: str, queue: str = "q", **fields: Any) -> list[int]:
        messages = [PushItem(payload=payload.encode(), **fields) for payload in payloads]
        return [receipt.id for receipt in self.send(*messages, queue=queue)]

    def try_lease(self, queue: str | None = "q", limit: int = 1, **how: Any) -> Leased:
        outcome: Leased = self.do(Lease(queue=None if "scope" in how else queue, limit=limit, **how))
        return outcome

    def lease(self, queue: str = "q", limit: int = 1, **how: Any) -> list[Delivery]:
        return self.try_lease(queue, limit, **how).messages

    def lease_one(self, queue: str = "q", **how: Any) -> Delivery:
        (message,) = self.lease(queue, 1, **how)
        return message

    def drain(self, queue: str = "q") -> list[str]:
        """Lease messages one by one until the queue is empty, and return their payloads in order."""
        found: list[str] = []
        while leased := self.lease(queue):
            found += texts(leased)
        return found

    def take(self, queue: str = "q", limit: int = 1) -> Leased:
        outcome: Leased = self.do(Take(queue=queue, limit=limit))
        return outcome

    def settle(self, verb: Callable[..., Command[SettledAll]], leased: Iterable[Delivery], **fields: Any) -> SettledAll:
        leased = list(leased)
        of_verb = {"lease_ms": fields.pop("lease_ms")} if "lease_ms" in fields else {}
        items = [SettleItem(message.id, message.token, **fields) for message in leased]
        outcome: SettledAll = self.do(verb(queue=leased[0].queue, items=items, **of_verb))
        return outcome

    def ack(self, *leased: Delivery) -> list[Settled]:
        return self.settle(Ack, leased).results

    def nack(self, *leased: Delivery, **fields: Any) -> SettledAll:
        return self.settle(Nack, leased, **fields)

    def extend(self, *leased: Delivery, **fields: Any) -> SettledAll:
        return self.settle(Extend, leased, **fields)

    def release(self, *leased: Delivery) -> list[Settled]:
        return self.settle(Release, leased).results

    def bury(self, *payloads: str, queue: str = "q", error: str = "broken", **fields: Any) -> list[int]:
        """Push messages and nack each until it is a dead letter."""
        attempts = self.make(queue).options.max_attempts
        ids = self.push(*payloads, queue=queue, **fields)
        for _ in range(attempts):
            leased = self.lease(queue, len(ids))
            assert [message.id for message in leased] == ids
            self.nack(*leased, delay_ms=0, error=error)
        return ids

    def redrive(self, queue: str = "q", **how: Any) -> RedriveOutcome:
        outcome: RedriveOutcome = self.do(Redrive(queue=queue, **how))
        return outcome

    def sweep(self, limit: int = 1_000) -> Swept:
        outcome: Swept = self.do(Sweep(limit=limit))
        return outcome

    def pages(self, state: State, queue: str = "q", limit: int = 100) -> list[StoredMessage]:
        """Return all messages in one state, read page by page."""
        found: list[StoredMessage] = []
        after: str | None = None
        while True:
            page, after = self.store.peek(queue, state=state, limit=limit, after=after)
            found += page
            if after is None:
                return found
            assert len(page) == limit

    def state(self, message_id: int, queue: str = "q") -> State | None:
        message = self.store.get(queue, message_id)
        return None if message is None else message.state

    def info(self, queue: str = "q") -> QueueInfo:
        info = self.store.find_queue(queue)
        assert info is not None
        return info

    def counts(self, queue: str = "q") -> dict[str, int]:
        """Return the number of messages in each non-empty state."""
        info = self.info(queue)
        return {str(state): getattr(info, state) for state in State if getattr(info, state)}


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until another process or thread has done its part."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def texts(messages: Iterable[Delivery | StoredMessage]) -> list[str]:
    return [message.payload.decode() for message in messages]


def ids(messages: Iterable[Delivery | StoredMessage]) -> list[int]:
    return [message.id for message in messages]


def push_command(payload: str, queue: str = "q", **fields: Any) -> Push:
    """Build a push of one message that creates its queue if necessary."""
    return Push(queue=queue, messages=[PushItem(payload=payload.encode(), **fields)], create=QueueOptions())
