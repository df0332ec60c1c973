"""Processor time of a message through the server, as clients, queues, payload and backlog grow, one at a time.

Two servers on one PostgreSQL, and one on SQLite. Progress goes to stderr and the tables to stdout. A complete run is
kept in benchmarks/results; a quick or partial one in benchmarks/results/tmp.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The PostgreSQL of the tests.
sys.path.append(str(ROOT))

from costs import plan as plans  # noqa: E402
from costs.cells import Stores, measure  # noqa: E402
from costs.plan import BATCHES, Plan, cell_of  # noqa: E402
from costs.report import STORES, as_markdown, draw, settle  # noqa: E402
from lib import machine  # noqa: E402
from lib.report import as_json  # noqa: E402
from lib.scenarios import say, turns  # noqa: E402
from pg.databases import Databases  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]


def main() -> int:
    options = parse()
    chosen = plans.QUICK if options.quick else plans.DEFAULT
    chosen = replace(chosen, rounds=options.rounds or chosen.rounds)
    if axes := [name for name in options.only if name in chosen.axes]:
        chosen = replace(chosen, axes={name: chosen.axes[name] for name in axes})
    kinds = [name for name in options.only if name in STORES] or list(STORES)
    complete = not (options.quick or options.only or options.rounds)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        if machine.filesystem(Path(name)) in ("tmpfs", "ramfs"):
            sys.exit("the temporary folder is in memory, where fsync costs nothing: set TMPDIR to a real disk")
        databases = Databases()
        try:
            results = asyncio.run(run(chosen, kinds, databases, Path(name), complete))
        finally:
            databases.remove()
    write(results, options.out or (RESULTS if complete else RESULTS / "tmp"))
    return 0


def parse() -> argparse.Namespace:
    names = [*STORES, *plans.DEFAULT.axes]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, fewer and smaller cells")
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], choices=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--rounds", type=int, help="[3, or 1 if quick]")
    parser.add_argument("--out", type=Path, help="folder for growth.json, .md and .png")
    return parser.parse_args()


async def run(chosen: Plan, kinds: list[str], databases: Databases, root: Path, complete: bool) -> Row:
    begun, task = monotonic(), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    facts = machine.facts(root) | {"postgres": databases.version}
    settings = {"rounds": chosen.rounds, "round_s": chosen.seconds, "complete": complete}
    rows: list[Row] = []
    for kind in kinds:
        stores = Stores(kind, root, databases)
        try:
            rows += await grow(chosen, stores, root)
        finally:
            stores.remove()
    facts["run_s"] = round(monotonic() - begun)
    return {"machine": facts, "settings": settings, "rows": rows}


async def grow(chosen: Plan, stores: Stores, root: Path) -> list[Row]:
    """Measure all cells of one kind of store, in turns."""
    rounds = defaultdict(list)
    for cell in turns(chosen.cells(), chosen.rounds):
        for batch, measured in (await measure(stores, cell, root, chosen.seconds)).items():
            rounds[cell, batch].append(measured)
            say(f"{stores.kind}, {cell}, batch {batch}: {measured}")
    rows = []
    for axis, values in chosen.axes.items():
        for batch in BATCHES:
            first = None
            for value in values:
                row = {"store": stores.kind, "axis": axis, "value": value, "batch": batch}
                row = settle(row | {"rounds": rounds[cell_of(axis, value), batch]}, first)
                first = first or row
                rows.append(row)
    return rows


def write(results: Row, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.json").write_text(as_json(results))
    text = as_markdown(results)
    (folder / "growth.md").write_text(text)
    draw(results["rows"], folder / "growth.png")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
