"""Measures the cost of the journal: push + lease + ack with it off, without bodies and with bodies, in alternation.

It measures a server over HTTP and a queue in this process, and writes journal.json, .md and .png to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import matplotlib

matplotlib.use("Agg")

from lib import machine
from lib.report import as_json
from lib.scenarios import say
from matplotlib import pyplot as plt
from peers.base import close_all
from peers.lean_http import Connection
from peers.penstock_http import PenstockHttp, encode
from served.cells import texts
from served.load import Load, Window
from uvloop import run as run_to_end

from penstock import LiteQueue

RESULTS = Path(__file__).parent / "results"
MODES = ("off", "meta", "full")
TARGETS = {"meta": 0.92, "full": 0.85}
SERVED = ((8, 10), (8, 100), (64, 1))
EMBEDDED = (1, 10, 100)
# The duration of a turn, which is short so that changes of the machine's speed affect all three modes alike.
SECONDS = 0.5
BODY = b"x" * 200
Row = dict[str, Any]


class Journalling(PenstockHttp):
    mode: ClassVar[str]

    async def create(self, queue: str) -> None:
        admin = await Connection.open(self.port)
        await admin.request(b"POST", b"/queues", encode({"name": queue, "journal": self.mode}))
        admin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        if machine.filesystem(root) in ("tmpfs", "ramfs"):
            sys.exit("the temporary folder is in memory, where fsync is free; set TMPDIR to a real disk")
        rows = [embedded(batch, chosen.rounds, root) for batch in EMBEDDED]
        rows += run_to_end(served(chosen.rounds, root))
        results = {"machine": machine.facts(root), "rows": rows}
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "journal.json").write_text(as_json(results))
    (chosen.out / "journal.md").write_text(as_markdown(results))
    draw(rows, chosen.out / "journal.png")
    print(as_markdown(results))
    return 0


async def served(rounds: int, root: Path) -> list[Row]:
    cores = sorted(os.sched_getaffinity(0))
    cpus = set(cores[:-1]) if len(cores) > 1 else None
    servers = [type(mode, (Journalling,), {"mode": mode, "key": mode})(root, cpus) for mode in MODES]
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:])
    try:
        for server in servers:
            await server.fresh()
        return [await _served(servers, clients, batch, rounds) for clients, batch in SERVED]
    finally:
        for server in servers:
            server.stop()


async def _served(servers: list[Journalling], clients: int, batch: int, rounds: int) -> Row:
    queue, loads = f"cycle-{clients}-{batch}", []
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for server in servers:
        await server.create(queue)
        loads.append(await server.connect(queue, clients))
    window = Window(SECONDS, SECONDS / 5)
    for turn in range(rounds + 1):
        for server, users in zip(servers, loads, strict=True):
            measured = await Load(users, "cycle", texts(batch)).run(window, server)
            if turn:  # The first turn is a warm-up.
                found[server.mode].append(measured.per_s)
    for users in loads:
        await close_all(users)
    return settle(f"over HTTP, {clients} clients, batch {batch}", found)


def embedded(batch: int, rounds: int, root: Path) -> Row:
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(dir=root) as folder, ExitStack() as stack:
        queues = {}
        for mode in MODES:
            queue = queues[mode] = stack.enter_context(LiteQueue(Path(folder, f"{mode}.db"), journal=mode != "off"))
            queue.put(b"first")
            queue._broker.configure("default", {"journal": mode})
            queue.clear()
        for turn in range(rounds + 1):
            for mode, queue in queues.items():
                per_s = _embedded(queue, batch)
                if turn:
                    found[mode].append(per_s)
    return settle(f"LiteQueue, 1 thread, batch {batch}", found)


def _embedded(queue: LiteQueue, batch: int) -> float:
    done, begun = 0, perf_counter()
    while perf_counter() - begun < SECONDS:
        if batch == 1:
            queue.put(BODY)
            message = queue.pop()
            assert message is not None
            queue.ack(message)
        else:
            queue.put_many([BODY] * batch)
            queue.ack_many(queue.pop_many(batch))
        done += batch
    return done / (perf_counter() - begun)


def settle(name: str, found: dict[str, list[float]]) -> Row:
    row: Row = {"name": name, "rounds": {mode: [round(each) for each in found[mode]] for mode in MODES}}
    for mode in MODES:
        row[mode] = round(median(found[mode]))
        # The machine's speed drifts over minutes, so ratios are computed within each round.
        shares = [one / off for one, off in zip(found[mode], found["off"], strict=True)]
        row[f"{mode}_share"] = round(median(shares), 3)
    say(f"{name}: {row['off']:,} off, {row['meta_share']:.0%} meta, {row['full_share']:.0%} full")
    return row


def as_markdown(results: dict[str, Any]) -> str:
    facts = results["machine"]
    lines = [
        "# Cost of the journal",
        "",
        f"{facts['date']}, {facts['cores']} cores, Python {facts['python']}. Full cycles (push, lease, ack) of durable "
        "200-byte messages per second; medians of rounds in which the three modes take turns of half a second.",
        "",
        "| | off | meta (no bodies) | full | meta / off | full / off |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['off']:,} | {row['meta']:,} | {row['full']:,} "
        f"| {row['meta_share']:.1%} | {row['full_share']:.1%} |"
        for row in results["rows"]
    ]
    lines += [
        "",
        "The last two columns are medians of the ratios within each round, because the machine's speed changes between "
        f"rounds; they are not the ratios of the medians. Load average at the start: {facts['load_before']}.",
        "",
    ]
    for mode, wanted in TARGETS.items():
        least = min(results["rows"], key=lambda row: row[f"{mode}_share"])
        share = least[f"{mode}_share"]
        met = "met" if share >= wanted else "NOT met"
        lines.append(f"- {mode}: target at least {wanted:.0%}, {met}; the lowest is {share:.1%} ({least['name']}).")
    return "\n".join([*lines, ""])


def draw(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4))
    for number, (mode, colour) in enumerate(zip(MODES, ("#b8a36a", "#7fb2d0", "#d1495b"), strict=True)):
        places = [place + (number - 1) * 0.27 for place in range(len(rows))]
        axes.bar(places, [row[f"{mode}_share"] for row in rows], 0.25, color=colour, label=mode)
    axes.set_xticks(range(len(rows)), [row["name"].replace(", ", "\n") for row in rows], fontsize=8)
    axes.set_ylabel("share of the rate without a journal")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main())
