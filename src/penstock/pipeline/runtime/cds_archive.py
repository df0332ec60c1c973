"""A class data sharing (CDS) archive of Spark's classes, which later starts map: loading them is most of a start.

Writing the archive makes a start twice as slow. So a separate small run does it once per installation, in the
background after the first command that used Spark, or on demand.

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

from penstock.pipeline.runtime.jar import jar_path
from penstock.pipeline.runtime.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each archive takes nearly 200 MB.
ARCHIVES_MAX = 4
MAKING, MAKING_SECONDS_MAX = ".making", 600
QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=off")
SETTINGS = {"spark.sql.shuffle.partitions": "1"}


def archive_of(java: Java) -> Path:
    """Return the archive's path for this Java, this installation of Spark and this jar of the reader.

    Java silently ignores the archive of another Java or Spark, and one of another jar lacks its classes.
    An empty file means that this Java cannot write one.
    """
    import pyspark

    jar = jar_path()
    inputs = f"{pyspark.__file__} {java.home} {jar}".encode() + (jar.read_bytes() if jar.exists() else b"")
    digest = hashlib.sha256(inputs).hexdigest()[:12]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{java.version}-{digest}.jsa"


def java_options(java: Java, keep_in: Path | None) -> list[str]:
    if keep_in is not None:
        return [f"-XX:ArchiveClassesAtExit={keep_in}", *QUIET]
    archive = archive_of(java)
    there = archive.exists() and archive.stat().st_size > 0
    return [f"-XX:SharedArchiveFile={archive}", *QUIET] if there else []


def keep_soon() -> bool:
    """Build the archive in the background unless it exists. Return True if a build was started."""
    archive = archive_of(find_java())
    if archive.exists() or _is_recent(_lock_file(archive)):
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
    lock_file = _lock_file(archive)
    if archive.exists() or not _claim(lock_file):
        return
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder) / archive.name
            spark = open_session(Path(folder) / "spark.log", brief=True, settings=SETTINGS, keep_classes=made)
            use_spark(spark)
            close_java(spark)
            made.touch()  # The Java of a wheel writes none, because it lacks the base archive.
            made.rename(archive)
        _remove_old(archive.parent)
    finally:
        lock_file.unlink(missing_ok=True)


def _lock_file(archive: Path) -> Path:
    """Return the path of the file that marks a build in progress."""
    return archive.with_suffix(MAKING)


def _is_recent(lock_file: Path) -> bool:
    try:
        return time.time() - lock_file.stat().st_mtime < MAKING_SECONDS_MAX
    except FileNotFoundError:
        return False


def _claim(lock_file: Path) -> bool:
    if not _is_recent(lock_file):
        lock_file.unlink(missing_ok=True)  # Left behind by a killed build.
    try:
        lock_file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def use_spark(spark: SparkSession) -> None:
    """Run what `pipeline run` and `pipeline sql` run, on a handful of messages."""
    from penstock.journal.drainer import journal_folder
    from penstock.lite import LiteQueue
    from penstock.pipeline.lake.lake import Lake
    from penstock.pipeline.lake.live_tables import LiveTables
    from penstock.pipeline.run import Pipeline
    from penstock.pipeline.source.journal_sync import drainer_of
    from penstock.pipeline.sql import tables_for

    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        database, lake = Path(folder) / "queue.db", Lake(Path(folder) / "lake")
        for number in range(2):  # The second round merges with existing rows.
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


def _remove_old(folder: Path) -> None:
    with suppress(FileNotFoundError):
        found = sorted(folder.glob("spark-*.jsa*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in found[ARCHIVES_MAX:]:
            old.unlink()


if __name__ == "__main__":
    os.nice(19)
    keep()
