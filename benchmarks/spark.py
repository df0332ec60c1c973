"""Compares the pipeline with other readers of the same rows: read rates, scaling, startup, freshness and cost.

Progress goes to stderr and the tables to stdout. A complete run writes to benchmarks/results; a quick or partial one
writes to benchmarks/results/tmp, so that it never replaces the published figures.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from lakes import live, report
from lakes.journal import fill
from lakes.start import start
from lakes.work import in_child
from lib import machine
from lib.report import as_json

from penstock.journal.drainer import journal_folder

RESULTS = Path(__file__).parent / "results"
COMPLETE_EVENTS, QUICK_EVENTS = 10_000_000, 1_000_000
SMALL_EVENTS = 30_000
SECTIONS = ("reads", "cores", "pipeline", "start", "fresh", "cost", "cost_of_history")
# Events of a day, of which there are up to a hundred.
DAY_EVENTS, QUICK_DAY_EVENTS = 60_000, 6_000
BOTH_WAYS = ["source, bodies, summed", "Parquet, bodies, summed", "source, no bodies, summed"]
RATES = (1_000, 10_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"read {QUICK_EVENTS:,} events in short rounds")
    parser.add_argument("--events", type=int, help=f"number of events in the journal; default {COMPLETE_EVENTS:,}")
    parser.add_argument(
        "--only", action="append", default=[], choices=SECTIONS, help="run only this section; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the freshness test at each rate")
    options = parser.parse_args()
    events = options.events or (QUICK_EVENTS if options.quick else COMPLETE_EVENTS)
    seconds = 10.0 if options.quick else options.seconds
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        results = run(folder, options.only or list(SECTIONS), events, 1 if options.quick else options.rounds, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    complete = events >= COMPLETE_EVENTS and not options.only and not options.quick
    write(results, RESULTS if complete else RESULTS / "tmp")
    return 0


def run(folder: Path, sections: list[str], events: int, rounds: int, seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine.facts(folder), "events": events, "journal_bytes": 0}
    if {"reads", "cores", "pipeline"} & set(sections):
        say(f"{events:,} events")
        results["journal_bytes"] = fill(journal_folder(folder / "penstock.db"), events)
        say("journal to gold")
        results["pipeline"] = in_child(2, what="pipeline", folder=str(folder), lake="lake")
    if "reads" in sections:
        say("reads")
        results["reads"] = in_child(2, what="reads", folder=str(folder), lake="lake", rounds=rounds, only=[])
    if "cores" in sections:
        results["cores"] = cores(folder, rounds)
    if "start" in sections:
        say("first answers")
        small = folder / "small"
        fill(journal_folder(small / "penstock.db"), SMALL_EVENTS)
        results["start"] = start(small, rounds)
    if "fresh" in sections:
        results["fresh"] = []
        for rate in RATES:
            say(f"freshness at {rate:,} events/s")
            results["fresh"].append(live.freshness(folder / f"fresh{rate}", rate, seconds))
    if "cost" in sections:
        say("cost of the pipeline for the server")
        results["cost"] = live.server_cost(folder / "cost", 3_000, seconds / 3, 6 * rounds)
    if "cost_of_history" in sections:
        say("cost of history")
        past = folder / "history"
        past.mkdir()
        day = DAY_EVENTS if events >= COMPLETE_EVENTS else QUICK_DAY_EVENTS
        results["cost_of_history"] = in_child(2, what="history", folder=str(past), events=day)
    return results


def cores(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Repeat the measurements with all processes pinned to one core, then to two."""
    found = []
    for count in (1, 2):
        say(f"{count} of the cores")
        child_rows = in_child(count, what="reads", folder=str(folder), lake="lake", rounds=rounds, only=BOTH_WAYS)
        rates = {row["way"]: row["events_s"] for row in child_rows}
        whole = in_child(count, what="pipeline", folder=str(folder), lake=f"lake-by-{count}")
        found.append(rates | {"journal to gold": whole["events_s"]})
    one, two = found
    return [{"way": way, "one_events_s": one[way], "two_events_s": two[way]} for way in one]


def write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spark.json").write_text(as_json(results))
    text = report.as_markdown(results)
    (folder / "spark.md").write_text(text)
    report.draw(results, folder / "spark.png")
    print(text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
