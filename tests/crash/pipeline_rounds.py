"""Kill the pipeline's processes and the server that it follows, again and again; then every table must be exact.

python tests/crash/pipeline_rounds.py --rounds 30 --messages 1000000 --seed 7
python tests/crash/pipeline_rounds.py --rounds 30 --master 'local-cluster[2,1,1024]'     # executors of their own

At the end: bronze is the journal, row for row; silver is what the clients were told, and what following each message
gives; gold is what DuckDB makes of silver and of bronze; and Spark, DuckDB and delta-rs read the same.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.journal.drain import journal_folder
from penstock.pipeline.lake import Lake
from tests.crash.pipeline_checks import check_gold_against_silver, check_history, check_silver
from tests.crash.pipeline_traffic import QUEUES, Traffic
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.integration.serving import Process
from tests.spark.readers import check_bronze, digests_by_delta_rs, digests_by_duckdb, digests_by_spark
from tests.spark.support import check_minutes

CLIENTS = 4
ROUND_SECONDS = (1.0, 15.0)
PATIENCE_SECONDS = 600
STOP_SECONDS = 60


class Place:
    """A server at a port that stays the same, and a pipeline that follows it; both are started again when killed."""

    def __init__(self, folder: Path, master: str) -> None:
        self.folder, self.data, self._master = folder, folder / "data", master
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.failures: Counter[str] = Counter()
        self._log = (folder / "pipeline.log").open("ab")
        self._serve()
        with self.server.client() as client:
            for name, options in QUEUES.items():
                client.queue(name, **options)
        self._run()

    def _serve(self) -> None:
        self.server = Process(self.folder, "--data", str(self.data), "--port", str(self.port), "--no-access-log")

    def command(self, *what: str) -> list[str]:
        return [PENSTOCK, "pipeline", *what, "--data", str(self.data), "--master", self._master]

    def _run(self) -> None:
        self.pipeline = subprocess.Popen(
            self.command("run", "--continuous"), stdout=self._log, stderr=self._log, env=clean_environment()
        )

    def revive(self) -> None:
        if self.server.process.poll() is not None:
            self._serve()
        if (code := self.pipeline.poll()) is not None:
            self.failures[f"pipeline ended with {code}"] += 1
            self._run()

    def victims(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {
            "server": [psutil.Process(self.server.process.pid)],
            "driver": [psutil.Process(self.pipeline.pid)],
        }
        for child in found["driver"][0].children(recursive=True):
            with suppress(psutil.Error):
                words = " ".join(child.cmdline())
                for role, word in _ROLES.items():
                    if word in words:
                        found.setdefault(role, []).append(child)
                        break
        return found

    def kill(self, chance: random.Random) -> str:
        """One process, at random among the kinds that there are."""
        try:
            found = self.victims()
        except psutil.Error:
            return "nothing: it was ending"
        role = chance.choice(sorted(found))
        with suppress(psutil.Error):
            chance.choice(found[role]).send_signal(signal.SIGKILL)
        if role == "server":
            self.server.process.wait()
        return role

    def finish(self) -> None:
        """The server ends in order, and the pipeline comes to the journal's end."""
        if self.pipeline.poll() is None:
            self.pipeline.send_signal(signal.SIGKILL)
        self.pipeline.wait()
        self.revive_server()
        assert self.server.terminate(STOP_SECONDS) == 0, self.server.text()
        subprocess.run(self.command("run", "--once"), check=True, env=clean_environment(), stdout=sys.stderr)

    def revive_server(self) -> None:
        if self.server.process.poll() is not None:
            self._serve()

    def close(self) -> None:
        self.server.close()
        if self.pipeline.poll() is None:
            self.pipeline.kill()
        self.pipeline.wait()
        self._log.close()


_ROLES = {
    "executor": "CoarseGrainedExecutorBackend",
    "driver's Java": "org.apache.spark.deploy.SparkSubmit",
    "Python worker": "pyspark.",
}


def wait_until(done: Callable[[], bool], place: Place, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        place.revive()
        time.sleep(0.1)


def run(rounds: int, messages: int, seed: int, master: str, folder: Path) -> None:
    chance, killed = random.Random(seed), Counter[str]()
    place = Place(folder, master)
    try:
        traffic = Traffic(place.port, CLIENTS, seed)
        try:
            for number in range(rounds):
                traffic.allowed = messages * (number + 1) // rounds
                moment = time.monotonic() + chance.uniform(*ROUND_SECONDS)
                wait_until(lambda moment=moment: time.monotonic() > moment, place, "a moment")  # type: ignore[misc]
                killed[role := place.kill(chance)] += 1
                say(f"round {number + 1}: {role}; {len(traffic.history.acked)} acked")
                wait_until(lambda: traffic.given >= traffic.allowed, place, "clients")
        finally:
            traffic.close()
        say(f"killed: {dict(killed)}; seen by the pipeline: {dict(place.failures)}")
        place.finish()
        check(place, traffic, master)
    except BaseException:
        print((folder / "pipeline.log").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        place.close()


def check(place: Place, traffic: Traffic, master: str) -> None:
    journal, lake = journal_folder(place.data / "penstock.db"), Lake(place.data / "lake")
    events = check_bronze(lake, journal)
    say(f"bronze is the journal: {events} events")
    lives = check_silver(lake, journal)
    told = check_history(lake, traffic.history, place.data / "penstock.db")
    say(f"silver is what the clients were told: {lives} lives, {told}")
    check_minutes(lake)
    minutes = check_gold_against_silver(lake)
    say(f"gold is what DuckDB makes of it: {minutes} minutes of queues")
    found = digests_by_delta_rs(lake)
    assert digests_by_duckdb(lake) == found
    assert digests_by_spark(place.data, "--master", master) == found
    say("Spark, DuckDB and delta-rs read the same: " + ", ".join(f"{name} {rows}" for name, rows, _ in found))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    say(f"{chosen.rounds} rounds, {chosen.messages} messages, seed {chosen.seed}, {chosen.master}")
    with tempfile.TemporaryDirectory(prefix="penstock-rounds-") as folder:
        run(chosen.rounds, chosen.messages, chosen.seed, chosen.master, Path(folder))


if __name__ == "__main__":
    main()
