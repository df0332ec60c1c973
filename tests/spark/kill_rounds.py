"""Kill a pipeline that follows a busy store, again and again, and see that every table is still exact at the end.

python -m tests.spark.kill_rounds --rounds 30 --seed 1
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from penstock.pipeline.lake import Lake
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.support import Work, check_lake, events_in


def victims(driver: psutil.Process) -> dict[str, list[psutil.Process]]:
    """By what they are: the driver itself, its Java, and Java's Python workers."""
    children = driver.children(recursive=True)
    return {
        "driver": [driver],
        "java": [each for each in children if each.name() == "java"],
        "worker": [each for each in children if each.name().startswith("python")],
    }


def one_round(data: Path, chance: random.Random) -> str:
    command = [PENSTOCK, "pipeline", "run", "--continuous", "--data", str(data), "--master", "local[2]"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=clean_environment())
    time.sleep(chance.uniform(6, 25))
    role = chance.choice(("driver", "java", "worker"))
    driver = psutil.Process(process.pid)
    found = victims(driver)
    others = [each for group in found.values() for each in group]
    for each in found[role]:
        each.send_signal(signal.SIGKILL)
    if role == "worker":
        time.sleep(2)  # Spark tries the task again; the driver goes on.
    for each in [driver, *others]:
        if each.is_running():
            each.kill()
    process.communicate()
    return role


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as folder:
        work = Work(Path(folder) / "data")
        work.some(50)
        work.drained()
        stop = threading.Event()

        def busy() -> None:
            seed = 0
            while not stop.is_set():
                work.some(50, seed=(seed := seed + 1))
                work.drained()

        worker = threading.Thread(target=busy)
        worker.start()
        try:
            for number in range(arguments.rounds):
                role = one_round(work.data, chance)
                print(f"round {number + 1}: {role} killed", flush=True)
        finally:
            stop.set()
            worker.join()
        work.drained()
        last = [PENSTOCK, "pipeline", "run", "--once", "--data", str(work.data), "--master", "local[2]"]
        subprocess.run(last, check=True, env=clean_environment(), stdout=sys.stderr)
        check_lake(work, Lake(work.data / "lake"))
        print(f"{sum(1 for _ in events_in(work.journal))} events: every table is exact")
        work.close_all()


if __name__ == "__main__":
    main()
