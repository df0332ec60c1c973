"""Opens a log, reads at random, and prints the times and the resident set. Runs as a script in a fresh process."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from time import perf_counter

import psutil

from penstock.log.reader import LogReader
from penstock.log.writer import Log


def main(folder: Path, reads: int) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    started = perf_counter()
    reader = LogReader(folder)
    opened = perf_counter() - started
    chance = random.Random(1)
    for _ in range(reads):
        reader.read(chance.randrange(reader.next_offset), 1)
    grown = process.memory_info().rss - before
    records = reader.next_offset
    reader.close()
    started = perf_counter()
    log = Log(folder)
    opened_to_write = perf_counter() - started
    log.close()
    print(
        json.dumps(
            {
                "open_ms": round(opened * 1000, 2),
                "open_to_write_ms": round(opened_to_write * 1000, 2),
                "memory_grown_bytes": grown,
                "memory_bytes_per_record": round(grown / records, 3),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
