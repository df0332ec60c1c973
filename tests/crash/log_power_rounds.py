"""Cuts the power of a log's writer at random operations: every acknowledged record must survive.

python tests/crash/log_power_rounds.py --rounds 200 --seed 7
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.model import StreamOptions, Trimmed
from penstock.log.reader import LogReader
from penstock.log.retention import TrimRequest, trim
from penstock.log.writer import Log
from tests.conformance.support import Clock
from tests.crash.power_cut_files import PowerCut, PowerCutFiles
from tests.unit.log.support import payload, read_all

OPTIONS = StreamOptions(segment_bytes=64 << 10)
ROUNDS_PER_LOG = 25


class Rounds:
    """The power cuts of one log."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.clock = Clock()
        self.acknowledged = self.committed = self.first = 0
        self.attempted = self.recovered = 0
        self.violations: list[str] = []
        Log.create(folder, "s", OPTIONS, clock=self.clock).close()

    def run(self) -> None:
        files = PowerCutFiles(self.folder, self.chance)
        files.operations_left = self.chance.choice((self.chance.randint(1, 30), self.chance.randint(1, 400)))
        log = None
        try:
            log = Log(self.folder, files=files, clock=self.clock)
            self._work(log, files)
        except PowerCut:
            pass
        finally:
            if log is not None:
                log.abandon()
        files.cut()
        self._check()

    def _work(self, log: Log, files: PowerCutFiles) -> None:
        consumers = Consumers(self.folder, "s", files=files, clock=self.clock)
        while True:
            self.clock.advance(self.chance.randint(0, 2_000))
            count = self.chance.choice((1, 1, 5, 40))
            first = log.next_offset
            self.attempted = max(self.attempted, first + count)
            log.append([payload(offset) for offset in range(first, first + count)])
            self.acknowledged = log.next_offset
            if self.chance.random() < 0.3:
                position = self.chance.randrange(max(self.committed, self.first), log.next_offset)
                consumers.submit(CommitPosition(consumer="c", offset=position))
                self.committed = position
            if self.chance.random() < 0.03:
                self._trim(log, consumers)

    def _trim(self, log: Log, consumers: Consumers) -> Trimmed:
        trimmed = trim(log, consumers.all().values(), TrimRequest(before=self.committed), self.clock())
        self.first = trimmed.first
        return trimmed

    def _check(self) -> None:
        with LogReader(self.folder) as reader:
            self._check_records(reader, "a reader")
        with Log(self.folder, clock=self.clock) as log:
            self.violations += [f"opening found: {each.text}" for each in log.findings if each.loses_records]
            self._check_records(log, "the writer")
            if log.next_offset > self.attempted:
                self.violations.append(f"{log.next_offset} records, but only {self.attempted} were attempted")
            self.recovered += log.next_offset - self.acknowledged
            self.acknowledged = log.next_offset
            self.first = log.first_offset
        known = Consumers(self.folder, "s", files=log.files, clock=self.clock).all().get("c")
        position = known.offset if known is not None and known.offset is not None else 0
        if position < self.committed:
            self.violations.append(f"position {position} is behind the committed {self.committed}")
        self.committed = max(position, self.first - 1, 0)

    def _check_records(self, log: LogReader, who: str) -> None:
        served, damaged = read_all(log)
        lost = [
            offset for offset in range(max(self.first, log.first_offset), self.acknowledged) if offset not in served
        ]
        wrong = [offset for offset, data in served.items() if data != payload(offset)]
        for what, offsets in (("lost", lost), ("wrong", wrong), ("damaged", damaged)):
            if offsets:
                self.violations.append(f"{who}: {what}: {offsets[:5]} of {self.acknowledged}")


def run(rounds: int, seed: int, folder: Path) -> tuple[int, int, list[str]]:
    """Return the numbers of acknowledged and of recovered records, and the violations."""
    chance = random.Random(seed)
    acknowledged = recovered = 0
    for number in range(0, rounds, ROUNDS_PER_LOG):
        one = Rounds(folder / f"log{number}", chance)
        for _ in range(min(ROUNDS_PER_LOG, rounds - number)):
            one.run()
            if one.violations:
                return acknowledged, recovered, one.violations
        acknowledged += one.acknowledged
        recovered += one.recovered
        shutil.rmtree(one.folder)
    return acknowledged, recovered, []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.rounds} power cuts", flush=True)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="power-rounds-"))
    acknowledged, recovered, violations = run(arguments.rounds, arguments.seed, folder)
    print(f"{acknowledged} acknowledged, {recovered} recovered, {len(violations)} violations")
    print(f"{time.monotonic() - started:.0f} s")
    for violation in violations:
        print(violation)
    if violations:
        print(f"the files are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
