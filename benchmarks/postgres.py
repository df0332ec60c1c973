"""Compares Penstock on PostgreSQL with its peers on one database server, and measures its HTTP server and a long churn.

Progress goes to stderr and the tables to stdout. A complete run writes to benchmarks/results; a quick or partial one
writes to benchmarks/results/tmp, so that it never replaces the published figures.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from lib import machine  # noqa: E402
from lib.report import as_json  # noqa: E402
from lib.scenarios import say  # noqa: E402
from pg import plan as plans  # noqa: E402
from pg.cells import compare  # noqa: E402
from pg.churn import churn  # noqa: E402
from pg.databases import Databases  # noqa: E402
from pg.figure import draw  # noqa: E402
from pg.fleet import fleet  # noqa: E402
from pg.plan import Plan  # noqa: E402
from pg.report import as_markdown  # noqa: E402
from pg.served import serve  # noqa: E402
from pg.systems import BY_KEY, OURS, Penstock  # noqa: E402

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    options = parse()
    chosen = plans.choose(plans.QUICK if options.quick else Plan(), options.only)
    if options.messages:
        chosen = replace(chosen, churned=options.messages)
    complete = not (options.quick or options.only or options.messages)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        if machine.filesystem(Path(name)) in ("tmpfs", "ramfs"):
            sys.exit("the temporary folder is in memory, where fsync is free; set TMPDIR to a real disk")
        databases = Databases()
        try:
            results = uvloop.run(run(chosen, databases, Path(name)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            sys.exit("interrupted; all servers were stopped")
        finally:
            databases.remove()
    write(results, options.out or (RESULTS if complete else RESULTS / "tmp"))
    return 1 if any("error" in row and row["system"] in OURS for row in results.get("compare", [])) else 0


def parse() -> argparse.Namespace:
    names = [*plans.SECTIONS, *BY_KEY]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run one short round with a smaller backlog and churn")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        choices=names,
        metavar="NAME",
        help="sections or systems:\n" + ", ".join(names),
    )
    parser.add_argument("--messages", type=int, help="number of messages of each churn")
    parser.add_argument("--out", type=Path, help="folder for postgres.json, .md and .png")
    return parser.parse_args()


async def run(chosen: Plan, databases: Databases, root: Path) -> dict[str, Any]:
    begun, task = monotonic(), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results: dict[str, Any] = {
        "machine": machine.facts(root) | {"postgres": databases.version},
        "settings": {"rounds": chosen.rounds, "round_s": chosen.seconds},
        "skipped": {system.key: why for system in chosen.systems if (why := system.missing())},
    }
    for key, why in results["skipped"].items():
        say(f"{key}: skipped, {why}")
    systems = [system for system in chosen.systems if system.key not in results["skipped"]]
    results["systems"] = [
        {
            "key": system.key,
            "version": system.version(),
            "client": system.client,
            "batch_form": system.batch_form,
        }
        for system in systems
    ]
    if "compare" in chosen.sections:
        results["compare"] = await compare(chosen, databases, systems)
    if "server" in chosen.sections and Penstock in systems:
        results["server"], results["memory"] = await serve(chosen, databases, root)
    if "fleet" in chosen.sections and Penstock in systems:
        results["fleet"] = await fleet(chosen, databases, root)
    if "churn" in chosen.sections:
        results["churn"] = await churn(databases, [system for system in systems if system is Penstock], chosen.churned)
    results["machine"]["run_s"] = round(monotonic() - begun)
    return results


def write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "postgres.json").write_text(as_json(results))
    text = as_markdown(results)
    (folder / "postgres.md").write_text(text)
    draw(results, folder / "postgres.png")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
