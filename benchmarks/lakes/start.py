"""Measures the time to the first result of a bare Spark session, `pipeline sql` and `pipeline run --once`.

The commands run cold, with a class archive (CDS), and with a resident JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from penstock.pipeline.runtime.cds_archive import MAKING, archive_of
from penstock.pipeline.runtime.java import find_java

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
BARE = """from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").getOrCreate()
print(spark.range(10).selectExpr("sum(id)").collect(), flush=True)"""
Row = dict[str, Any]


def start(folder: Path, rounds: int) -> list[Row]:
    """Run all commands on a small journal, `run` with a new lake each time. All use the same Java and Python."""
    java = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    sql_command = [PENSTOCK, "pipeline", "sql", "SELECT sum(pushed) FROM gold.queues", "--json", "--data", str(folder)]
    run = [PENSTOCK, "pipeline", "run", "--once", "--json", "--data", str(folder), "--lake"]
    warm = folder / "cache-warm"
    subprocess.run(
        [sys.executable, "-m", "penstock.pipeline.runtime.cds_archive"],
        env=os.environ | java | {"XDG_CACHE_HOME": str(warm)},
        check=True,
    )
    first_line_s([*run, str(folder / "lake")], java | {"XDG_CACHE_HOME": str(warm)})
    java_stays = os.environ | java | {"XDG_CACHE_HOME": str(warm)}
    taken: dict[str, list[float]] = {}
    for number in range(rounds):
        cold = _cache(folder / f"cache-{number}")
        for name, command, cache in (
            ("bare Spark session", [sys.executable, "-c", BARE], warm),
            ("pipeline sql, cold", sql_command, cold),
            ("pipeline run --once, cold", [*run, str(folder / f"cold-{number}")], cold),
            ("pipeline sql, archive", sql_command, warm),
            ("pipeline run --once, archive", [*run, str(folder / f"warm-{number}")], warm),
        ):
            taken.setdefault(name, []).append(first_line_s(command, java | {"XDG_CACHE_HOME": str(cache)}))
    subprocess.run([PENSTOCK, "pipeline", "warm"], env=java_stays, check=True, stdout=subprocess.DEVNULL)
    for number in range(rounds):
        for name, command in (
            ("pipeline sql, resident", sql_command),
            ("pipeline run --once, resident", [*run, str(folder / f"resident-{number}")]),
        ):
            taken.setdefault(name, []).append(first_line_s(command, java | {"XDG_CACHE_HOME": str(warm)}))
    subprocess.run([PENSTOCK, "pipeline", "warm", "--stop"], env=java_stays, check=True, stdout=subprocess.DEVNULL)
    return [
        {"what": name, "seconds": round(median(times), 2), "rounds": [round(each, 2) for each in times]}
        for name, times in taken.items()
    ]


def first_line_s(command: list[str], settings: dict[str, str]) -> float:
    began = monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | settings, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = monotonic() - began
    process.stdout.read()
    if process.wait() != 0 or not line:
        raise RuntimeError(f"{command} failed")
    return seconds


def _cache(folder: Path) -> Path:
    """Return a cache folder without a class archive, and with a mark that stops other processes from making one."""
    mark = folder / "penstock" / archive_of(find_java()).with_suffix(MAKING).name
    mark.parent.mkdir(parents=True)
    mark.touch()
    return folder
