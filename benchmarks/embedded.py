"""Compares the embedded queue with its peers and with the limits of the disk, in alternation within one run.

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

from lib import machine, plan, scenarios
from lib.clock import folder_in, payloads
from lib.figure import draw
from lib.files import Backlog
from lib.plan import Plan
from lib.report import as_json, as_markdown
from lib.systems import SYNCHRONOUS, System

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    options = parse()
    chosen = plan.choose(plan.QUICK if options.quick else plan.DEFAULT, options.only)
    complete = not options.quick and not options.only
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        results = run(chosen, Path(name))
    write(results, options.out or (RESULTS if complete else RESULTS / "tmp"))
    return 1 if failed(results) else 0


def parse() -> argparse.Namespace:
    names = [*plan.SECTIONS, *(system.key for system in plan.SYSTEMS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about 2 minutes instead of about 20")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help="a section or a system; may be repeated:\n" + ", ".join(names),
    )
    parser.add_argument("--out", type=Path, help="folder for embedded.json, .md and .png")
    return parser.parse_args()


def run(chosen: Plan, root: Path) -> dict[str, Any]:
    begun = monotonic()
    check_disk(chosen, root)
    results: dict[str, Any] = {"machine": machine.facts(root)}
    results["synchronous"] = {system.key: check_system(system, root) for system in chosen.systems}
    results["versions"] = machine.versions(chosen.systems)
    results["settings"] = {"rounds": chosen.rounds, "round_s": chosen.round_s, "pops": chosen.pops}
    files = Backlog(root)
    if "throughput" in chosen.sections:
        results["throughput"] = scenarios.throughput(chosen, root)
    if "backlog" in chosen.sections:
        results["backlog"] = scenarios.backlog(chosen, files)
    ours = any(system.kind == "penstock" for system in chosen.systems)
    if ours and "state" in chosen.sections:
        results["state"] = scenarios.state(chosen, files)
    if ours and "memory" in chosen.sections:
        results["memory"] = scenarios.memory(chosen, root)
    results["machine"]["run_s"] = round(monotonic() - begun)
    return results


def check_disk(chosen: Plan, root: Path) -> None:
    kind = machine.filesystem(root)
    if kind in ("tmpfs", "ramfs"):
        scenarios.say(f"warning: the files are on {kind}, where fsync is free; set TMPDIR to a real disk")
    free = shutil.disk_usage(root).free
    if free < chosen.free_bytes:
        sys.exit(f"{chosen.free_bytes / 1e9:.0f} GB are needed and {free / 1e9:.1f} GB are free; set TMPDIR")


def check_system(system: type[System], root: Path) -> dict[str, int | None]:
    """Check that each message is popped exactly once, and return the pragma that each durability really sets."""
    found: dict[str, int | None] = {}
    for durability, expected in SYNCHRONOUS.items():
        with folder_in(root) as folder:
            handle = system(folder, durability)
            try:
                found[durability] = handle.synchronous()
                handle.push(payloads(25))
                counts = [handle.pop_ack(count) for count in (1, 20, 20, 1)]
            finally:
                handle.close()
        if counts != [1, 20, 4, 0] or found[durability] not in (None, expected):
            sys.exit(f"{system.label} at {durability}: synchronous {found[durability]}, popped {counts}")
    return found


def write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "embedded.json").write_text(as_json(results))
    text = as_markdown(results)
    (folder / "embedded.md").write_text(text)
    draw(results, folder / "embedded.png")
    print(text)


def failed(results: dict[str, Any]) -> bool:
    """Return True if Penstock failed in a cell; the failure of a peer is only reported."""
    rows = [*results.get("throughput", []), *results.get("backlog", [])]
    return any("error" in row and row["system"] == "penstock" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
