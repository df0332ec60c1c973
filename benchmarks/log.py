"""Compares the log with the raw disk, in alternation within one run: appends, reads, and logs of up to 50M records.

Progress goes to stderr and the tables to stdout. A complete run writes to benchmarks/results; a quick or partial one
writes to benchmarks/results/tmp, so that it never replaces the published figures.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from lib import machine
from lib.report import as_json
from logs import measure, report

RESULTS = Path(__file__).parent / "results"
SECTIONS = {
    "append": measure.appends,
    "crowd": measure.crowd,
    "sequential": measure.sequential,
    "scale": measure.scale,
}
FREE_BYTES = 8 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="take under a minute, with at most a million records")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(SECTIONS), help="one section; may be repeated"
    )
    parser.add_argument("--out", type=Path, help="folder for log.json, .md and .png")
    options = parser.parse_args()
    plan = measure.QUICK if options.quick else measure.DEFAULT
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        results = run(plan, options.only or list(SECTIONS), Path(name))
    complete = not options.quick and not options.only
    write(results, options.out or (RESULTS if complete else RESULTS / "tmp"))
    return 0


def run(plan: measure.Plan, sections: list[str], root: Path) -> dict[str, Any]:
    if machine.filesystem(root) in ("tmpfs", "ramfs"):
        measure.say("warning: the files are in memory, where fsync is free; set TMPDIR to a real disk")
    if shutil.disk_usage(root).free < FREE_BYTES:
        sys.exit(f"{FREE_BYTES / 1e9:.0f} GB are needed; set TMPDIR")
    begun = monotonic()
    results: dict[str, Any] = {"machine": machine.facts(root)}
    results["settings"] = {"rounds": plan.rounds, "round_s": plan.round_s}
    for section in sections:
        results[section] = SECTIONS[section](plan, root)
    results["machine"]["run_s"] = round(monotonic() - begun)
    return results


def write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.json").write_text(as_json(results))
    text = report.as_markdown(results)
    (folder / "log.md").write_text(text)
    report.draw(results, folder / "log.png")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
