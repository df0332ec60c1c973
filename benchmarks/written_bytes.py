"""Measures the bytes written to disk per payload byte, by verb, for 200-byte messages in batches of 100.

The kernel counts them for this process (/proc/self/io), up to the last checkpoint of a phase. The results go to
written_bytes.json, .md and .png in benchmarks/results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from lib import machine
from lib.clock import payloads
from lib.report import as_json, table
from matplotlib import pyplot as plt

from penstock.core.commands import Ack, Configure, Lease, Push, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.journal.drainer import Drain, journal_folder
from penstock.store.sqlite import SqliteStore

RESULTS = Path(__file__).parent / "results"
BATCH = 100
VERBS = ("push", "lease", "ack")
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        if machine.filesystem(Path(folder)) in ("tmpfs", "ramfs"):
            sys.exit("the temporary folder is in memory; set TMPDIR to a real disk")
        rows = []
        for journal in (False, True):
            paths = [Path(folder) / f"{journal}-{number}.db" for number in range(chosen.rounds)]
            rows.append(settle(journal, [measure(path, journal, chosen.batches) for path in paths]))
        results = {"machine": machine.facts(Path(folder)), "batches": chosen.batches, "rows": rows}
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "written_bytes.json").write_text(as_json(results))
    (chosen.out / "written_bytes.md").write_text(as_markdown(rows))
    draw(rows, chosen.out / "written_bytes.png")
    print(as_markdown(rows))
    return 0


def measure(path: Path, journal: bool, batches: int) -> dict[str, float]:
    """Return bytes written per payload byte by verb."""
    messages = [PushItem(payload=payload) for payload in payloads(BATCH)]
    payload_bytes = batches * sum(len(message.payload) for message in messages)
    with closing(SqliteStore(path, journal=journal)) as store:
        store.apply([Configure(queue="q", changes={}, create=QueueOptions())])
        store.shorten_log()
        leased: list[Any] = []

        def push() -> None:
            for _ in range(batches):
                store.apply([Push(queue="q", messages=messages)])

        def lease() -> None:
            leased.extend(store.apply([Lease(queue="q", limit=BATCH)])[0].messages for _ in range(batches))

        def ack() -> None:
            for each in leased:
                store.apply([Ack(queue="q", items=[SettleItem(message.id, message.token) for message in each])])

        def counted(work: Callable[[], None]) -> float:
            before = written_bytes()
            work()
            if journal:
                drain(store, path)
            store.shorten_log()
            return (written_bytes() - before) / payload_bytes

        return {work.__name__: counted(work) for work in (push, lease, ack)}


def drain(store: SqliteStore, path: Path) -> None:
    """Move the events from the outbox to the log, as a server does."""
    opened = Drain.open(store, journal_folder(path))
    assert opened is not None
    with closing(opened) as drained:
        while (command := drained.step()) is not None:
            store.apply([command])


def written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def settle(journal: bool, rounds: list[dict[str, float]]) -> Row:
    return {"journal": journal, **{verb: round(median(each[verb] for each in rounds), 2) for verb in VERBS}}


def name(row: Row) -> str:
    return f"journal {'on' if row['journal'] else 'off'}"


def as_markdown(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        values = [row[verb] for verb in VERBS]
        lines.append([name(row), *(f"{value:.2f}" for value in (*values, sum(values)))])
    about = (
        "Messages of 200 bytes in batches of 100, SQLite store, full durability. SQLite writes each changed page to\n"
        "its write-ahead log and again at a checkpoint, so a push writes at least 2 bytes per payload byte. With a\n"
        "journal the payload is also written to the outbox, and from there to the log."
    )
    head = ["bytes written / payload bytes", *VERBS, "together"]
    return f"# Bytes written\n\n{about}\n\n{table(head, lines)}\n"


def draw(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 2.4))
    for place, row in enumerate(rows):
        left = 0.0
        for verb, colour in zip(VERBS, ("#2e6f95", "#6aa5c4", "#8c8c8c"), strict=True):
            axes.barh(place, row[verb], left=left, color=colour, label=verb if place else None)
            left += row[verb]
    axes.set_yticks(range(len(rows)), [name(row) for row in rows])
    axes.set_xlabel("bytes written / payload bytes")
    axes.legend(ncols=len(VERBS), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
