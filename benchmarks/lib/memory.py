"""Pushes many messages, pops some, and prints the resident set. Runs as a script in a fresh process.

The peak is read from /proc, because a child's ru_maxrss includes the parent that it was forked from.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

import psutil

PUSH_BATCH = 1_000
POPPED = 10_000
POP_BATCH = 100


def peak_bytes() -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    kib = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024


def main(path: str, count: int) -> None:
    from penstock import LiteQueue

    process = psutil.Process()
    before = process.memory_info().rss
    batch = [bytes(200)] * PUSH_BATCH
    queue = LiteQueue(path)
    for _ in range(0, count, PUSH_BATCH):
        queue.put_many(batch)
    pushed = process.memory_info().rss
    for _ in range(0, POPPED, POP_BATCH):
        queue.ack_many(queue.pop_many(POP_BATCH))
    report = {
        "messages": count,
        "popped": POPPED,
        "rss_imported_bytes": before,
        "rss_pushed_bytes": pushed,
        "rss_popped_bytes": process.memory_info().rss,
        "rss_peak_bytes": peak_bytes(),
    }
    queue.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
