"""Kills the process that writes a stream with SIGKILL at random moments, and compares the stream with its log.

python tests/crash/log_kill_rounds.py --rounds 200 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.errors import CorruptRecord
from penstock.log.model import LogRecord, StreamOptions
from penstock.log.streams import FileStreams

OPTIONS = StreamOptions(segment_bytes=64 << 10)
ROUNDS_PER_STREAM = 25
PRODUCERS = 4
COLUMNS = ("attempted", "acknowledged", "lost", "duplicated", "recovered", "unexpected")


def work_until_killed(root: Path, notes: Path, round_number: int, seed: int) -> None:
    """Run producers and a consumer, which log each request and each response."""
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    streams = FileStreams(root)

    def produce(number: int) -> None:
        chance, count = random.Random(seed + number), 0
        while True:
            size, count = chance.choice((1, 1, 10, 50)), count + 1
            name = f"{round_number}-{number}-{count}"
            os.write(fd, b"try %s %d\n" % (name.encode(), size))
            payloads = [f"{name}-{part} ".encode() * chance.randint(1, 30) for part in range(size)]
            appended = streams.append("s", payloads)
            os.write(fd, b"done %s %d\n" % (name.encode(), appended.first))

    def consume() -> None:
        while True:
            page = streams.next("s", "c", limit=100)
            if page.records:
                streams.commit("s", "c", page.records[-1].offset)
                os.write(fd, b"position %d\n" % page.records[-1].offset)
            else:
                streams.wait("s", page.next, 1)

    threads = [threading.Thread(target=produce, args=(number,), daemon=True) for number in range(PRODUCERS)]
    threads.append(threading.Thread(target=consume, daemon=True))
    for thread in threads:
        thread.start()
    threads[0].join()


class Ledger:
    """The logged operations on one stream, to compare with its records."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self.position = -1
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def read(self, notes: Path) -> None:
        for line in notes.read_text().splitlines():
            match line.split():
                case ["try", name, size]:
                    self.sizes[name] = int(size)
                case ["done", name, first]:
                    self.offsets[name] = int(first)
                case ["position", offset]:
                    self.position = max(self.position, int(offset))

    def add_violation(self, column: str, text: str) -> None:
        self.counts[column] += 1
        self.violations.append(f"{column}: {text}")

    def settle(self, streams: FileStreams) -> None:
        records = self._read(streams)
        found: dict[str, int] = {}
        for record in records:
            text = record.data.decode().split()[0]
            if set(record.data.decode().split()) != {text}:
                self.add_violation("unexpected", f"the bytes of {record.offset} are mixed")
            if text in found:
                self.add_violation("duplicated", f"{text} is at both {found[text]} and {record.offset}")
            found[text] = record.offset
        self.counts["attempted"] += sum(self.sizes.values())
        for name, size in self.sizes.items():
            offsets = [found.pop(f"{name}-{part}", None) for part in range(size)]
            first = self.offsets.get(name)
            if first is None:
                self.counts["recovered"] += sum(offset is not None for offset in offsets)
                continue
            self.counts["acknowledged"] += size
            if offsets != list(range(first, first + size)):
                self.add_violation("lost", f"{name}: acknowledged at {first}, found at {offsets}")
        for text, offset in found.items():
            self.add_violation("unexpected", f"{text} at {offset} was never attempted")
        consumer = {each.name: each.offset for each in streams.consumers("s")}.get("c")
        if (-1 if consumer is None else consumer) < self.position:
            self.add_violation("lost", f"position {self.position} was committed, but it is {consumer}")

    def _read(self, streams: FileStreams) -> list[LogRecord]:
        records: list[LogRecord] = []
        at = 0
        while at < streams.next_offset("s"):
            try:
                page = streams.read("s", at)
            except CorruptRecord as error:
                self.add_violation("lost", str(error))
                at += 1
            else:
                records += page.records
                at = page.next
        report = streams.check("s")
        self.violations += [f"check: {finding.text}" for finding in report.findings if finding.loses_records]
        return records


def run(rounds: int, seed: int, folder: Path, longest_s: float = 0.8) -> Ledger:
    chance, total = random.Random(seed), Ledger()
    for first in range(0, rounds, ROUNDS_PER_STREAM):
        root = folder / f"streams{first}"
        with_notes = folder / f"notes{first}"
        streams = FileStreams(root)
        streams.create("s", OPTIONS)
        streams.close()
        ledger = Ledger()
        for number in range(min(ROUNDS_PER_STREAM, rounds - first)):
            _one_round(root, with_notes, number, chance, longest_s)
        ledger.read(with_notes)
        streams = FileStreams(root)
        ledger.settle(streams)
        streams.close()
        total.counts += ledger.counts
        total.violations += ledger.violations
        if not ledger.violations:
            shutil.rmtree(root)
    return total


def _one_round(root: Path, notes: Path, number: int, chance: random.Random, longest_s: float) -> None:
    seed = chance.getrandbits(32)
    pid = os.fork()
    if not pid:
        try:
            work_until_killed(root, notes, number, seed)
        finally:
            os._exit(1)
    # Some kills come so early that the process is still opening or recovering the log.
    time.sleep(chance.uniform(0.005, 0.05) if chance.random() < 0.3 else chance.uniform(0.05, longest_s))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.rounds} rounds", flush=True)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="log-kill-rounds-"))
    total = run(arguments.rounds, arguments.seed, folder)
    print("".join(f"{column:>14}" for column in COLUMNS))
    print("".join(f"{total.counts[column]:>14}" for column in COLUMNS))
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
