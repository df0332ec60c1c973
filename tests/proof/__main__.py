"""Runs the proof: faults, a soak test, overload and fuzzing on both stores, with one report.

python -m tests.proof --minutes 30 --soak-minutes 10 --store both
python -m tests.proof --seed 7            # repeats the schedule of that seed
python -m tests.proof --short             # injects every fault once; takes a minute and a half
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.proof import compatibility, fault_run, fuzzing, load, soak
from tests.proof.disk import compiler
from tests.proof.faults import Faults
from tests.proof.report import Report, merged

PARTS = ("faults", "soak", "load", "fuzzing", "compatibility")
# The lifetime of one set of servers; after it, a fresh one starts, so that each history stays small enough to read.
WORLD_SECONDS = 300


def main() -> int:
    chosen = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="penstock-proof-"))
    folder.chmod(0o755)
    report = Report(chosen.seed, without_disk=compiler() is None)
    print(f"seed {chosen.seed}, {', '.join(chosen.parts)} on {', '.join(chosen.stores)}", flush=True)
    for store in chosen.stores:
        for part in chosen.parts:
            try:
                DO[part](report, store, folder / f"{part}-{store}", chosen)
            except Exception:
                report.failed.append(f"{part} on {store}: {traceback.format_exc()}")
                print(report.failed[-1], flush=True)
    if chosen.out is not None:
        report.write(chosen.out)
        print(f"report written to {chosen.out}")
    for violation in report.violations[:50]:
        print(violation)
    if report.violations:
        print(f"{len(report.violations)} violations; seed {chosen.seed}; histories and server logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="minutes of faults on each store  [30]")
    parser.add_argument("--soak-minutes", type=float, default=10, help="minutes of soak testing on each store  [10]")
    parser.add_argument("--load-seconds", type=float, default=10, help="seconds of load per number of clients  [10]")
    parser.add_argument(
        "--fuzzing", type=int, default=20, help="size of each fuzzing campaign, such as requests per endpoint  [20]"
    )
    parser.add_argument(
        "--compatibility-seconds", type=float, default=60, help="seconds of use before a store is migrated  [60]"
    )
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument(
        "--only", choices=PARTS, action="append", dest="parts", help="run only this part; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--short", action="store_true", help="inject every fault once and skip the other parts")
    parser.add_argument("--out", type=Path, help="folder for the report  [./proof-report; none with --short]")
    chosen = parser.parse_args()
    chosen.stores = ("sqlite", "postgresql") if chosen.store == "both" else (chosen.store,)
    chosen.parts = chosen.parts or (("faults",) if chosen.short else PARTS)
    if chosen.out is None and not chosen.short:
        chosen.out = Path("proof-report")
    return chosen


def _faults(report: Report, store: str, folder: Path, chosen: argparse.Namespace) -> None:
    end = time.monotonic() + chosen.minutes * 60
    number = 0
    while True:
        world_end = min(end, time.monotonic() + WORLD_SECONDS)

        def enough(faults: Faults, world_end: float = world_end) -> bool:
            each_once = len(faults.happened) == len(faults.kinds())
            return each_once if chosen.short else time.monotonic() > world_end

        done = fault_run.run(store, chosen.seed + number, folder / f"world{number}", enough)
        report.fault_runs.append(done)
        total, happened, explained = merged([each for each in report.fault_runs if each.store == store])
        print(
            f"{store}, seed {done.seed}, {done.seconds:.0f} s, {happened.total()} faults\n{total.table()}", flush=True
        )
        for reason, count in explained.most_common():
            print(f"{count:>8}  {reason}")
        number += 1
        if chosen.short or time.monotonic() > end or done.verdict.violations:
            return
        shutil.rmtree(folder / f"world{number - 1}", ignore_errors=True)


def _soak(report: Report, store: str, folder: Path, chosen: argparse.Namespace) -> None:
    done = soak.run(store, chosen.seed, folder, chosen.soak_minutes * 60)
    report.soaks.append(done)
    print(f"soak on {store}: {done.samples[-1]}, {len(done.violations)} violations", flush=True)


def _load(report: Report, store: str, folder: Path, chosen: argparse.Namespace) -> None:
    done = load.run(store, folder, chosen.load_seconds)
    report.loads.append(done)
    for level in done.levels:
        print(f"load on {store}: {level.summary()}", flush=True)


def _fuzz(report: Report, store: str, folder: Path, chosen: argparse.Namespace) -> None:
    report.fuzzed[store] = fuzzing.run(store, folder, chosen.seed, chosen.fuzzing)
    print(f"fuzzing on {store}: {report.fuzzed[store]}", flush=True)


def _compatibility(report: Report, store: str, folder: Path, chosen: argparse.Namespace) -> None:
    report.compatibility[store] = compatibility.run(store, folder, chosen.compatibility_seconds)
    print(f"compatibility on {store}: {report.compatibility[store]}", flush=True)


DO: dict[str, Callable[[Report, str, Path, argparse.Namespace], None]] = {
    "faults": _faults,
    "soak": _soak,
    "load": _load,
    "fuzzing": _fuzz,
    "compatibility": _compatibility,
}

if __name__ == "__main__":
    sys.exit(main())
