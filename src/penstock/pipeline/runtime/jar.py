"""Builds the jar of the log reader that runs inside Spark's JVM (`source/jvm/*.scala`), once per installation.

It uses the compiler that ships with Spark, which takes some seconds. Without the jar, Python reads. To build it and
print its path:

    python -m penstock.pipeline.runtime.jar
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from penstock.errors import CannotOpen
from penstock.pipeline.runtime.java import cache_folder, find_java

EXTENSION = "penstock.spark.Extension"
# A session that excludes this optimizer rule reads in Python.
RULE, RULES_LEFT_OUT = "penstock.spark.ReadFoldersHere", "spark.sql.optimizer.excludedRules"
COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m")
COMPILE_SECONDS_MAX = 300
JARS_MAX = 4


def settings() -> dict[str, str]:
    """Return the session settings that load the jar; empty if there is none."""
    jar = jar_path()
    return {"spark.jars": jar.as_uri(), "spark.sql.extensions": EXTENSION} if _usable(jar) else {}


def jar_path() -> Path:
    """Return the jar's path for these sources and this Spark. An empty file means that compiling failed."""
    import pyspark

    text = b"".join(source.read_bytes() for source in _sources())
    return cache_folder() / f"reader-{pyspark.__version__}-{hashlib.sha256(text).hexdigest()[:12]}.jar"


def make_jar() -> Path:
    jar = jar_path()
    if _usable(jar):
        return jar
    with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
        made = Path(folder) / jar.name
        try:
            _compile(made)
        except CannotOpen:
            jar.touch()
            raise
        made.rename(jar)
    _remove_old(jar.parent)
    return jar


def _compile(into: Path) -> None:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    command = [str(find_java().home / "bin/java"), *COMPILER, "-cp", f"{jars}/*", "scala.tools.nsc.Main"]
    try:
        done = subprocess.run(
            [*command, "-usejavacp", "-d", str(into), *map(str, _sources())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotOpen(f"cannot run the Scala compiler: {error}") from error
    if done.returncode or not into.exists():
        raise CannotOpen(f"cannot compile the log reader: {done.stdout.strip()}")


def _sources() -> list[Path]:
    return sorted((Path(__file__).parents[1] / "source" / "jvm").glob("*.scala"))


def _usable(jar: Path) -> bool:
    try:
        return jar.stat().st_size > 0
    except FileNotFoundError:
        return False


def _remove_old(folder: Path) -> None:
    found = sorted(folder.glob("reader-*.jar"), key=os.path.getmtime, reverse=True)
    for old in found[JARS_MAX:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    print(make_jar())
