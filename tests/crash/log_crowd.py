"""Runs many producers and consumers on one stream: each record must reach each consumer once, in order.

python tests/crash/log_crowd.py --seconds 60
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.log.model import StreamOptions
from penstock.log.streams import FileStreams

PRODUCERS = CONSUMERS = 20
OPTIONS = StreamOptions(segment_bytes=1 << 20)


def produce(streams: FileStreams, number: int, go_on: Callable[[int], bool]) -> int:
    count = 0
    while go_on(count):
        streams.append("s", [b"%d %d" % (number, count)])
        count += 1
    return count


def consume(streams: FileStreams, name: str, until: Callable[[], int | None]) -> tuple[int, str | None]:
    """Read until the end is reached; return the number of records and the first violation."""
    expected, counts = 0, [0] * PRODUCERS
    while (end := until()) is None or expected < end:
        page = streams.next("s", name, limit=500)
        for record in page.records:
            number, count = map(int, record.data.split())
            if record.offset != expected or count != counts[number]:
                return expected, f"{name}: {record.offset} ({record.data!r}) instead of {expected}"
            expected, counts[number] = expected + 1, count + 1
        if page.records:
            streams.commit("s", name, page.records[-1].offset)
        else:
            streams.wait("s", page.next, 0.2)
    return expected, None


def consume_in_other_process(
    root: Path,
    names: list[str],
    end: multiprocessing.Queue[int],
    outcome_queue: multiprocessing.Queue[tuple[int, str | None]],
) -> None:  # type: ignore[type-arg]
    streams, known = FileStreams(root), threading.Event()
    ends: list[int] = []
    threads = [
        threading.Thread(
            target=lambda name=name: outcome_queue.put(consume(streams, name, lambda: ends[0] if ends else None))
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    ends.append(end.get())
    known.set()
    for thread in threads:
        thread.join()
    streams.close()


def run(root: Path, go_on: Callable[[int], bool]) -> tuple[int, list[str]]:
    """Run half of the consumers in another process; return the number of records and the violations."""
    context = multiprocessing.get_context("spawn")
    streams = FileStreams(root)
    streams.create("s", OPTIONS)
    names = [f"c{number:02}" for number in range(CONSUMERS)]
    end, outcome_queue = context.Queue(), context.Queue()
    other_process = context.Process(
        target=consume_in_other_process, args=(root, names[CONSUMERS // 2 :], end, outcome_queue)
    )
    other_process.start()
    ends: list[int] = []
    outcomes: list[tuple[int, str | None]] = []
    consumers = [
        threading.Thread(
            target=lambda name=name: outcomes.append(consume(streams, name, lambda: ends[0] if ends else None))
        )
        for name in names[: CONSUMERS // 2]
    ]
    produced: list[int] = []
    producers = [
        threading.Thread(target=lambda number=number: produced.append(produce(streams, number, go_on)))
        for number in range(PRODUCERS)
    ]
    for thread in consumers + producers:
        thread.start()
    for thread in producers:
        thread.join()
    total = sum(produced)
    ends.append(total)
    end.put(total)
    for thread in consumers:
        thread.join()
    outcomes += [outcome_queue.get() for _ in names[CONSUMERS // 2 :]]
    other_process.join()
    positions = {each.name: each.offset for each in streams.consumers("s")}
    streams.close()
    violations = [text for _, text in outcomes if text is not None]
    violations += [f"a consumer got {count} of {total}" for count, text in outcomes if text is None and count != total]
    violations += [f"{name} is at {offset}" for name, offset in positions.items() if offset != total - 1]
    return total, violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="log-crowd-"))
    deadline = time.monotonic() + arguments.seconds
    total, violations = run(root, lambda _: time.monotonic() < deadline)
    print(f"{PRODUCERS} producers, {CONSUMERS} consumers: {total} records, each delivered once, in order")
    for violation in violations:
        print(violation)
    if not violations:
        shutil.rmtree(root)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
