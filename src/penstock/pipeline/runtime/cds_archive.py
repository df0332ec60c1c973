"""Spark's classes as they were after an earlier start, for later ones to map: most of a start is loading them.

A Java that keeps them takes twice as long. So a small run of its own does that, once for every installation, in the
background, after the first command that used Spark; or when asked to. It makes the reader's jar, too (`jar.py`).

    python -m penstock.pipeline.runtime.cds_archive
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import CannotOpen
from penstock.pipeline.runtime.jar import jar_path, make_jar
from penstock.pipeline.runtime.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each has nearly 200 MB.
ARCHIVES_MAX = 4
MAKING, MAKING_SECONDS_MAX = ".making", 600
QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=off")
SETTINGS = {"spark.sql.shuffle.partitions": "1"}


def archive_of(java: Java) -> Path:
    """Of this Java and this place of Spark's jars: Java passes over any other without a word.

    An empty file says that this Java leaves none.
    """
    import pyspark

    place = hashlib.sha256(f"{pyspark.__file__} {java.home}".encode()).hexdigest()[:12]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{java.version}-{place}.jsa"


def java_options(java: Java, keep_in: Path | None) -> list[str]:
    if keep_in is not None:
        return [f"-XX:ArchiveClassesAtExit={keep_in}", *QUIET]
    archive = archive_of(java)
    there = archive.exists() and archive.stat().st_size > 0
    return [f"-XX:SharedArchiveFile={archive}", *QUIET] if there else []


def keep_soon() -> bool:
    """Start to make archive and jar in the background, unless they are there; whether it was started."""
    archive = archive_of(find_java())
    if _is_whole(archive) or _is_fresh(_mark(archive)):
        return False
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True
    return False


def keep() -> None:
    from penstock.pipeline.runtime.gateway import close_java
    from penstock.pipeline.runtime.session import open_session

    archive = archive_of(find_java())
    mark = _mark(archive)
    if _is_whole(archive) or not _claim(mark):
        return
    try:
        with suppress(CannotOpen):  # Python serves as well.
            make_jar()
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder) / archive.name
            spark = open_session(Path(folder) / "spark.log", brief=True, settings=SETTINGS, keep_classes=made)
            use_spark(spark)
            close_java(spark)
            made.touch()  # A Java of a wheel leaves none: it lacks the archive that this would add to.
            made.rename(archive)
        _forget_old_ones(archive.parent)
    finally:
        mark.unlink(missing_ok=True)


def _is_whole(archive: Path) -> bool:
    """One that was made before the jar lacks what that needs."""
    try:
        return archive.stat().st_mtime_ns >= jar_path().stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _mark(archive: Path) -> Path:
    """That somebody makes it."""
    return archive.with_suffix(MAKING)


def _is_fresh(mark: Path) -> bool:
    try:
        return time.time() - mark.stat().st_mtime < MAKING_SECONDS_MAX
    except FileNotFoundError:
        return False


def _claim(mark: Path) -> bool:
    if not _is_fresh(mark):
        mark.unlink(missing_ok=True)  # Of one that was killed.
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def use_spark(spark: SparkSession) -> None:
    """As `pipeline run` and `pipeline sql` do, on a handful of messages."""
    from penstock.journal.drainer import journal_folder
    from penstock.lite import LiteQueue
    from penstock.pipeline.lake.lake import Lake
    from penstock.pipeline.lake.live_tables import LiveTables
    from penstock.pipeline.run import Pipeline
    from penstock.pipeline.source.journal_sync import drainer_of
    from penstock.pipeline.sql import tables_for

    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        database, lake = Path(folder) / "queue.db", Lake(Path(folder) / "lake")
        for number in range(2):  # The second time there is something to merge with.
            with LiteQueue(str(database), journal=True) as queue:
                queue.put(b"%d" % number)
                queue.pop()
            with closing(drainer_of(None, database)) as drainer:
                drainer.drain()
            with Pipeline(spark, journal_folder(database), lake) as pipeline:
                for _ in pipeline.steps():
                    pass
        query = "SELECT queue, sum(pushed) FROM gold.queues GROUP BY queue ORDER BY 2"
        with tables_for(query, spark, lake, LiveTables(None)):
            spark.sql(query).toArrow()
    spark.range(1).mapInArrow(lambda batches: batches, "id long").toArrow()


def _forget_old_ones(folder: Path) -> None:
    with suppress(FileNotFoundError):
        found = sorted(folder.glob("spark-*.jsa*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in found[ARCHIVES_MAX:]:
            old.unlink()


if __name__ == "__main__":
    os.nice(19)
    keep()
