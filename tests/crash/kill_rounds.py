"""Kills writers and consumers of one queue file with SIGKILL at random moments, and checks what they had logged.

python tests/crash/kill_rounds.py --rounds 200 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock import LiteQueue
from tests.conformance.recount import check_tables
from tests.crash.accounting import Accounting, Ledger
from tests.crash.workers import consume, now_ms, work_until_killed, write

WRITERS = CONSUMERS = 8
ROUNDS_PER_FILE = 25
HOUR_MS = 3_600_000


@dataclass
class Worker:
    step: Callable[..., None]
    pid: int


class Fleet:
    """Writers and consumers on one file, forked from a process that has never opened it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.queue_path = folder / "queue.db"
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._chance = chance
        self._started = 0
        self.workers = [self._start(step) for step in [write] * WRITERS + [consume] * CONSUMERS]

    def _start(self, step: Callable[..., None]) -> Worker:
        self._started += 1
        notes, seed = self.notes / f"{self._started:05}-{step.__name__}", self._chance.getrandbits(32)
        pid = os.fork()
        if pid:
            return Worker(step, pid)
        try:
            work_until_killed(step, self.queue_path, notes, seed)
        finally:
            os._exit(1)

    def kill(self, victims: list[Worker]) -> None:
        for worker in victims:
            os.kill(worker.pid, signal.SIGKILL)
        for worker in victims:
            os.waitpid(worker.pid, 0)

    def restart(self, victims: list[Worker]) -> None:
        for worker in victims:
            worker.pid = self._start(worker.step).pid


def run(rounds: int, seed: int, folder: Path) -> Accounting:
    chance, total = random.Random(seed), Accounting()
    for first in range(0, rounds, ROUNDS_PER_FILE):
        file_folder = folder / f"file{first // ROUNDS_PER_FILE}"
        file_folder.mkdir()
        total.add(_one_file(min(ROUNDS_PER_FILE, rounds - first), file_folder, chance))
        if not total.violations:
            shutil.rmtree(file_folder)
    return total


def _one_file(rounds: int, folder: Path, chance: random.Random) -> Accounting:
    fleet = Fleet(folder, chance)
    for number in range(rounds):
        # Some kills come so early that a process is still opening or recovering the file.
        time.sleep(chance.uniform(0.01, 0.1) if chance.random() < 0.2 else chance.uniform(0.3, 1.2))
        everyone = chance.random() < 0.4 or number == rounds - 1
        victims = list(fleet.workers) if everyone else chance.sample(fleet.workers, chance.randint(1, 10))
        fleet.kill(victims)
        if number < rounds - 1:
            fleet.restart(victims)
    ledger = Ledger()
    ledger.read(sorted(fleet.notes.iterdir()))
    _check_file(fleet.queue_path, ledger.accounting)
    accounting = ledger.settle(_drain(fleet.queue_path, ledger))
    _check_file(fleet.queue_path, accounting)
    return accounting


def _check_file(path: Path, accounting: Accounting) -> None:
    with closing(sqlite3.connect(path)) as db:
        for (verdict,) in db.execute("PRAGMA integrity_check").fetchall():
            if verdict != "ok":
                accounting.add_violation("put", "unexpected", f"integrity_check: {verdict}")
        try:
            check_tables(db)
        except AssertionError as error:
            accounting.add_violation("put", "unexpected", f"counters differ from a recount: {error}")


def _drain(path: Path, ledger: Ledger) -> set[str]:
    """Take everything that is left, with a clock an hour ahead so that all leases have expired."""
    drained = set()
    with LiteQueue(path, clock=lambda: now_ms() + HOUR_MS) as queue:
        held = queue.qsize()
        while messages := queue.pop_many(1_000):
            for m in messages:
                drained.add(m.id)
                ledger.deliver(m.id, m.data.decode(), m.retry_count, now_ms() + HOUR_MS, now_ms() + HOUR_MS)
            queue.ack_many(messages)
        if held != len(drained) or queue.dlq():
            ledger.accounting.add_violation(
                "pop", "unexpected", f"qsize was {held}, but {len(drained)} messages were left"
            )
    return drained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.rounds} rounds", flush=True)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="kill-rounds-"))
    total = run(arguments.rounds, arguments.seed, folder)
    print(total.table())
    print(f"{time.monotonic() - started:.0f} s")
    for violation in total.violations[:50]:
        print(violation)
    if total.violations:
        print(f"{len(total.violations)} violations; the files are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
