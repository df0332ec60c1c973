"""Compares this tree with an earlier revision: quick benchmarks in interleaved pairs, with a 95 % interval per cell.

Each revision runs its own benchmark code, so `--base` may have another layout. Progress goes to stderr and the table
to stdout. JSON, table and plot are written to benchmarks/results/tmp, or to the folder in `--out`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")

from lib import machine
from lib.report import as_json, table
from lib.scenarios import say
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.95
FEWEST_PAIRS = 5
# The 0.975 quantile of Student's t by degrees of freedom; above these, the one of the normal distribution is used.
T_975 = {4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20, 14: 2.14, 19: 2.09, 29: 2.05}
RUNS = {
    "embedded": ["--quick", "--only", "throughput", "--only", "penstock"],
    "server": ["--quick", "--only", "compare", "penstock", "penstock-sdk"],
    "postgres": ["--quick", "--only", "compare", "server", "penstock"],
}
CELL_FIELDS = ("system", "operation", "durability", "backlog", "batch", "clients", "threads")

Row = dict[str, Any]


def main() -> int:
    options = parse()
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"base": [], "new": []})
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as name:
        trees = {"base": checkout(options.base, Path(name) / "base"), "new": ROOT}
        try:
            for pair in range(options.pairs):
                order = ("base", "new") if pair % 2 == 0 else ("new", "base")
                for benchmark in options.only or RUNS:
                    for side in order:
                        say(f"pair {pair + 1} of {options.pairs}: {benchmark}, {side}")
                        out = Path(name) / f"{pair}-{benchmark}-{side}"
                        for cell, rate in measure(trees[side], benchmark, out):
                            rates[f"{benchmark}: {cell}"][side].append(rate)
                write(options, rates)
        finally:
            git("worktree", "remove", "--force", str(trees["base"]))
    print((options.out / "compare.md").read_text())
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="revision to compare with")
    parser.add_argument("--pairs", type=int, default=10, help="number of runs of each revision (at least 5)")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), help="run these benchmarks only")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "tmp")
    options = parser.parse_args()
    if options.pairs < FEWEST_PAIRS:
        parser.error(f"an interval needs at least {FEWEST_PAIRS} pairs")
    return options


def checkout(revision: str, folder: Path) -> Path:
    git("worktree", "add", "--quiet", "--detach", str(folder), revision)
    return folder


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def measure(tree: Path, benchmark: str, out: Path) -> Iterator[tuple[str, float]]:
    """Run one benchmark of `tree` with the packages of this environment, and yield its cells."""
    command = [sys.executable, str(tree / "benchmarks" / f"{benchmark}.py"), *RUNS[benchmark], "--out", str(out)]
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    run = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr[-4000:]}")
    results = json.loads((out / f"{benchmark}.json").read_text())
    for section in ("throughput", "compare", "server"):
        for row in results.get(section, []):
            yield cell_name(row, section), rate_of(row)


def cell_name(row: Row, section: str) -> str:
    parts = [
        f"{field} {row[field]}" if isinstance(row[field], int) else row[field] for field in CELL_FIELDS if field in row
    ]
    return ", ".join(parts if "system" in row else ["HTTP with a journal", *parts])


def rate_of(row: Row) -> float:
    return float(median(each["per_s"] if isinstance(each, dict) else each for each in row["rounds"]))


def interval(base: list[float], new: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of new/base over the pairs and its 95 % interval."""
    logs = [math.log(after / before) for before, after in zip(base, new, strict=True)]
    freedom = len(logs) - 1
    quantile = T_975[max(known for known in T_975 if known <= freedom)]
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), math.exp(mean(logs) - half), math.exp(mean(logs) + half)


def write(options: argparse.Namespace, rates: dict[str, dict[str, list[float]]]) -> None:
    """Write the results so far, so that an interrupted run is not lost."""
    if any(len(sides["new"]) < FEWEST_PAIRS for sides in rates.values()):
        return
    rows: list[Row] = []
    for cell, sides in rates.items():
        ratio, low, high = interval(sides["base"], sides["new"])
        rows.append({"cell": cell, "ratio": ratio, "low": low, "high": high, "slower": high < LIMIT, **sides})
    options.out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(Path(tempfile.gettempdir()))
    results = {"machine": facts, "base": git("rev-parse", options.base), "new": git("rev-parse", "HEAD"), "cells": rows}
    (options.out / "compare.json").write_text(as_json(results))
    (options.out / "compare.md").write_text(as_markdown(results))
    draw(rows, options.out / "compare.png")


def as_markdown(results: dict[str, Any]) -> str:
    rows = results["cells"]
    slower = sum(row["slower"] for row in rows)
    lines = [
        [
            row["cell"],
            f"{median(row['base']):,.0f}",
            f"{median(row['new']):,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            "slower" if row["slower"] else "",
        ]
        for row in rows
    ]
    head = (
        f"Revision {results['new'][:10]} against {results['base'][:10]}, {len(rows[0]['new'])} interleaved pairs, "
        f"{results['machine']['cores']} cores. Messages per second; ratio new / base with its 95 % interval. "
        f"{slower} of {len(rows)} cells are slower: their interval ends below {LIMIT}."
    )
    return f"# Comparison\n\n{head}\n\n{table(['cell', 'base', 'new', 'ratio', '95 % interval', ''], lines)}\n"


def draw(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(10, 1 + 0.24 * len(rows)))
    for place, row in enumerate(reversed(rows)):
        colour = "#d1495b" if row["slower"] else "#2e6f95"
        axes.plot([row["low"], row["high"]], [place, place], color=colour)
        axes.plot(row["ratio"], place, "o", color=colour, markersize=4)
    axes.axvline(1, color="#8c8c8c", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["cell"] for row in reversed(rows)], fontsize=7)
    axes.set_xlabel("new / base, 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
