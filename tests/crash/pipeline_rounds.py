"""Kill the pipeline's processes and the servers that it follows, again and again; then every table must be exact.

python tests/crash/pipeline_rounds.py --rounds 30 --messages 1000000 --seed 7
python tests/crash/pipeline_rounds.py --rounds 30 --store postgresql
python tests/crash/pipeline_rounds.py --rounds 10 --lake s3               # on an S3 server that is killed, too
python tests/crash/pipeline_rounds.py --rounds 10 --master standalone      # a master and two workers of its own

At the end: bronze is the journal, row for row; silver is what the clients were told, and what following each message
gives; gold is what DuckDB makes of silver and of bronze; and Spark, DuckDB and delta-rs read the same.
"""

from __future__ import annotations

import argparse
import random
import signal
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

from tests.crash.pipeline_checks import check_gold_against_silver, check_history, check_queues, check_silver
from tests.crash.pipeline_places import HOMES, S3, Place
from tests.crash.pipeline_traffic import History, Traffic
from tests.spark.readers import check_bronze, digests_by_delta_rs, digests_by_duckdb, digests_by_spark
from tests.spark.support import check_minutes

CLIENTS = 4
ROUND_SECONDS_MIN = 1.0
PATIENCE_SECONDS = 900


def run(place: Place, rounds: int, messages: int, seed: int, seconds: float) -> History:
    """What the clients were told while one process after the other was killed."""
    chance, killed = random.Random(seed), Counter[str]()
    traffic = Traffic(place.ports, CLIENTS, seed)
    try:
        for number in range(rounds):
            traffic.allowed = messages * (number + 1) // rounds
            moment = time.monotonic() + chance.uniform(ROUND_SECONDS_MIN, seconds)
            wait_until(lambda moment=moment: time.monotonic() > moment, place)  # type: ignore[misc]
            killed[role := kill_one(place, chance)] += 1
            say(f"round {number + 1}: {role}; {len(traffic.history.acked)} acked; commits by table: {place.commits()}")
            wait_until(lambda: traffic.given >= traffic.allowed, place)
    finally:
        traffic.close()
    say(f"killed: {dict(killed)}; {dict(place.failures)}")
    return traffic.history


def wait_until(done: Callable[[], bool], place: Place) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "the clients do not get on"
        place.revive()
        time.sleep(0.1)


def kill_one(place: Place, chance: random.Random) -> str:
    """A process at random, of a kind at random."""
    try:
        found = place.victims()
    except psutil.Error:
        return "nothing, it was ending"
    role = chance.choice(sorted(found))
    with suppress(psutil.Error):
        chance.choice(found[role]).send_signal(signal.SIGKILL)
    return role


def check(place: Place, history: History) -> None:
    lake, home = place.lake, place.home
    say(f"bronze is the journal: {check_bronze(lake, home.events())} events")
    lives = check_silver(lake, home.events())
    say(f"silver is what the clients were told: {lives} lives, {check_history(lake, history, home.held())}")
    check_minutes(lake)
    minutes, queues = check_gold_against_silver(lake), check_queues(lake, home.held())
    say(f"gold is what DuckDB makes of it: {minutes} minutes of {queues} queues")
    found = digests_by_delta_rs(lake)
    assert digests_by_duckdb(lake) == found
    assert digests_by_spark(*place.flags) == found
    say("Spark, DuckDB and delta-rs read the same: " + ", ".join(f"{name} {rows}" for name, rows, _ in found))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="from one kill to the next, at most")
    parser.add_argument("--store", choices=list(HOMES), default="sqlite")
    parser.add_argument("--lake", choices=("folder", S3), default="folder")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--master", default="local[2]", help="Spark's, or: standalone")
    chosen = parser.parse_args()
    what = f"{chosen.rounds} rounds, {chosen.messages} messages, {chosen.store}, lake: {chosen.lake}"
    say(f"{what}, seed {chosen.seed}, {chosen.master}")
    with tempfile.TemporaryDirectory(prefix="penstock-rounds-") as folder:
        place = Place(Path(folder), chosen.store, chosen.master, lake=chosen.lake)
        try:
            history = run(place, chosen.rounds, chosen.messages, chosen.seed, chosen.seconds)
            place.finish()
            check(place, history)
        except BaseException:
            print(place.said()[-4000:], file=sys.stderr)
            raise
        finally:
            place.close()


if __name__ == "__main__":
    main()
