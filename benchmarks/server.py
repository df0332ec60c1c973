"""Compares the server with its peers, each with fsync and its own Python client, in alternation within one run.

Progress goes to stderr and the tables to stdout. A complete run writes to benchmarks/results; a quick or partial one
writes to benchmarks/results/tmp, so that it never replaces the published figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from lib import machine
from lib.report import as_json
from lib.scenarios import say
from peers import OURS, PEERS, Peer
from served import plan as plans
from served.cells import compare
from served.figure import draw
from served.plan import Plan
from served.promises import promises
from served.report import as_markdown
from served.workers import workers

RESULTS = Path(__file__).parent / "results"
OPEN_FILES = 8_192


def main() -> int:
    options = parse()
    chosen = plans.choose(plans.QUICK if options.quick else plans.DEFAULT, options.only)
    complete = not options.quick and not options.only
    raise_open_files()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        if machine.filesystem(Path(name)) in ("tmpfs", "ramfs"):
            sys.exit("the temporary folder is in memory, where fsync is free; set TMPDIR to a real disk")
        results = run_loop(run(chosen, Path(name), options.pin))
    write(results, options.out or (RESULTS if complete else RESULTS / "tmp"))
    return 1 if failed(results) else 0


def parse() -> argparse.Namespace:
    names = [*plans.SECTIONS, *(system.key for system in PEERS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run one short round with smaller backlogs")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        choices=names,
        metavar="NAME",
        help="sections or systems:\n" + ", ".join(names),
    )
    parser.add_argument(
        "--no-pin",
        dest="pin",
        action="store_false",
        help="let the generator and the servers share all cores (by default the generator has the last core alone)",
    )
    parser.add_argument("--out", type=Path, help="folder for server.json, .md and .png")
    return parser.parse_args()


def raise_open_files() -> None:
    """Raise the limit on open files: a thousand long polls need as many sockets, here and in the server, which inherits
    the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_loop(coroutine: Any) -> dict[str, Any]:
    try:
        from uvloop import run as run_to_end
    except ImportError:
        from asyncio import run as run_to_end
    try:
        return run_to_end(coroutine)
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit("interrupted; all servers were stopped")


async def run(chosen: Plan, root: Path, pin: bool) -> dict[str, Any]:
    begun, task = monotonic(), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    cores = sorted(os.sched_getaffinity(0))
    pin = pin and len(cores) > 1
    servers = set(cores[:-1]) if pin else None
    results: dict[str, Any] = {
        "machine": machine.facts(root),
        "settings": {
            "rounds": chosen.rounds,
            "window_s": chosen.window.seconds,
            "warm_s": chosen.window.warm_s,
            "cores": cores_text(len(cores), pin),
        },
        "skipped": {system.key: why for system in chosen.systems if (why := system.missing())},
    }
    for key, why in results["skipped"].items():
        say(f"{key}: skipped, {why}")
    systems = [system(root, servers) for system in chosen.systems if system.key not in results["skipped"]]
    results["systems"] = [description(system) for system in systems]
    if pin:
        os.sched_setaffinity(0, cores[-1:])
    try:
        if "compare" in chosen.sections:
            results["compare"] = await compare(chosen, systems)
        if "workers" in chosen.sections:
            results["workers"] = await workers(chosen, systems)
    finally:
        for system in systems:
            system.stop()
    if "promises" in chosen.sections and any(system.key in OURS for system in chosen.systems):
        results["promises"], results["profile"] = await promises(chosen, root, servers)
    results["machine"]["run_s"] = round(monotonic() - begun)
    return results


def cores_text(count: int, pin: bool) -> str:
    if not pin:
        return f"The generator and the servers share {count} cores."
    return f"The generator, one process, has one core, and the measured server has the rest ({count - 1})."


def description(system: Peer) -> dict[str, str]:
    library = system.library
    if system.module:
        library += f" {machine.version(system.library)}"
    return {
        "key": system.key,
        "version": system.version(),
        "client": library,
        "durability": system.durability,
        "batch_form": system.batch_form or "–",
        "worker_form": system.worker_form or "–",
        "acks": "gets a response" if system.confirms_acks else "gets no response",
    }


def write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.json").write_text(as_json(results))
    text = as_markdown(results)
    (folder / "server.md").write_text(text)
    if results.get("compare") or results.get("workers"):
        draw(results.get("compare", []), results.get("workers", []), folder / "server.png")
    print(text)


def failed(results: dict[str, Any]) -> bool:
    """Return True if Penstock failed in a cell; the failure of a peer or a missed target is only reported."""
    unmeasured = any(row["value"] is None for row in results.get("promises", []))
    cells = [*results.get("compare", []), *results.get("workers", [])]
    return unmeasured or any("error" in row and row["system"] in OURS for row in cells)


if __name__ == "__main__":
    sys.exit(main())
