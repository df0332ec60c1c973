"""Locates the jar of the log reader that runs inside Spark's JVM (`source/jvm/*.scala`).

Wheels contain the jar; in a clone, `make provision` builds it with `tools/jar.py`. Without it, Python reads.
"""

from __future__ import annotations

from pathlib import Path

EXTENSION = "penstock.spark.Extension"
# A session that excludes this optimizer rule reads in Python.
RULE, RULES_LEFT_OUT = "penstock.spark.ReadFoldersHere", "spark.sql.optimizer.excludedRules"
FOLDER = Path(__file__).parents[1] / "source" / "jvm"


def settings() -> dict[str, str]:
    """Return the session settings that load the jar; empty if there is none for this version of Spark."""
    jar = jar_path()
    return {"spark.jars": jar.as_uri(), "spark.sql.extensions": EXTENSION} if jar.exists() else {}


def jar_path() -> Path:
    """Return the path of the jar for this minor version of Spark: its internal classes change with the next one."""
    import pyspark

    major, minor, *_ = pyspark.__version__.split(".")
    return FOLDER / f"reader-spark-{major}.{minor}.jar"
