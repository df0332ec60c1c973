"""Kills a busy server with SIGKILL again and again, and compares its journal with its clients' records.

python tests/crash/journal_rounds.py --rounds 200 --seed 7
"""

from __future__ import annotations

import argparse
import http.client
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.journal.drainer import journal_folder
from tests.conformance.recount import check_tables
from tests.conformance.replay import Replay, check_counters, log_events
from tests.integration.serving import Client, Process

CLIENTS = 6
QUEUES = ("plain", "retried")
BATCH_MAX = 5
TROUBLE = (OSError, http.client.HTTPException)


@dataclass
class Acknowledged:
    """Counts the acknowledged operations of a client by message id."""

    pushed: Counter[int] = field(default_factory=Counter)
    acked: Counter[int] = field(default_factory=Counter)
    nacked: Counter[int] = field(default_factory=Counter)


class Worker(threading.Thread):
    """Pushes, leases, acks and nacks until the server of this round is killed."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__()
        self.acknowledged = Acknowledged()
        self._chance = random.Random(seed)
        self._client = Client("127.0.0.1", port)

    def run(self) -> None:
        try:
            while True:
                self._work(f"/queues/{self._chance.choice(QUEUES)}")
        except TROUBLE:
            self._client.close()

    def _work(self, path: str) -> None:
        messages = [{"payload": number} for number in range(self._chance.randint(1, BATCH_MAX))]
        self.acknowledged.pushed.update(self._ask(f"{path}/messages", {"messages": messages})["message_ids"])
        leased = self._ask(f"{path}/poll?batch={BATCH_MAX}&wait_ms=0")["messages"]
        for verb, counter in (("ack", self.acknowledged.acked), ("nack", self.acknowledged.nacked)):
            part = [each for each in leased if (self._chance.random() < 0.2) == (verb == "nack")]
            leased = [each for each in leased if each not in part]
            if part:
                items = [{"id": each["id"], "token": each["token"]} for each in part]
                results = self._ask(f"{path}/{verb}", {"items": items})["results"]
                counter.update(result["id"] for result in results if result["result"] == "ok")

    def _ask(self, path: str, body: Any = None) -> Any:
        answer = self._client.post(path, body)
        assert answer.status in (200, 201), answer
        return answer.json


def run(rounds: int, seed: int, folder: Path) -> list[str]:
    """Return the violations."""
    chance, acknowledged = random.Random(seed), Acknowledged()
    data = folder / "data"
    for number in range(rounds):
        server = Process(folder, "--data", str(data))
        try:
            if number == 0:
                with server.client() as client:
                    client.queue("plain")
                    client.queue("retried", max_attempts=2, backoff="fixed", backoff_ms=0, archive_ms=60_000)
            workers = [Worker(server.port, chance.getrandbits(32)) for _ in range(CLIENTS)]
            for worker in workers:
                worker.start()
            time.sleep(chance.uniform(0.05, 0.6))
        finally:
            server.close()
        for worker in workers:
            worker.join()
            for name in ("pushed", "acked", "nacked"):
                getattr(acknowledged, name).update(getattr(worker.acknowledged, name))
    server = Process(folder, "--data", str(data))
    code = server.terminate()
    return [f"the server ended with {code}"] * (code != 0) + check(data / "penstock.db", acknowledged)


def check(path: Path, acknowledged: Acknowledged) -> list[str]:
    replay, counter = Replay(), {kind: Counter[int]() for kind in ("pushed", "acked", "nacked")}
    events = list(log_events(journal_folder(path)))
    # The replay raises if an offset is missing or duplicated, or if an event contradicts the ones before it.
    replay.play(events)
    for event in events:
        if event.kind in counter and event.id is not None:
            counter[event.kind][event.id] += 1
    with closing(sqlite3.connect(path)) as db:
        check_tables(db)
        check_counters(db, replay)
        (undrained,) = db.execute("SELECT max(first_offset + records) FROM penstock_journal").fetchone()
    violations = [] if undrained == replay.next_offset else [f"the log ends at {replay.next_offset}, not {undrained}"]
    print(f"{'':10}{'acknowledged':>14}{'in journal':>12}{'lost':>8}{'duplicated':>12}{'recovered':>11}")
    for name, counted in counter.items():
        answered: Counter[int] = getattr(acknowledged, name)
        lost = answered - counted
        duplicated = {each for each, count in counted.items() if count > 1} if name != "nacked" else set()
        print(
            f"{name:10}{answered.total():>14}{counted.total():>12}{lost.total():>8}{len(duplicated):>12}"
            f"{(counted - answered).total():>11}"
        )
        violations += [f"{name}: {lost.total()} lost, {len(duplicated)} duplicated"] * bool(lost or duplicated)
    print(f"{len(events)} events in {replay.next_offset} records; all counters equal the replay")
    return violations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    chosen = parser.parse_args()
    print(f"{chosen.rounds} rounds, seed {chosen.seed}")
    with tempfile.TemporaryDirectory() as folder:
        violations = run(chosen.rounds, chosen.seed, Path(folder))
    for violation in violations:
        print(violation)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
