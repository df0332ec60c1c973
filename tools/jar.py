"""Compiles the log reader for Spark's JVM (`source/jvm/*.scala`) to the jar that wheels contain.

    python -m tools.jar

The Scala compiler comes with PySpark. Hatchling runs `JarHook` when it builds a wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m")
COMPILE_SECONDS_MAX = 300


class JarHook(BuildHookInterface[Any]):
    """Adds the jar to a wheel. A build without PySpark, such as that of a server's image, leaves it out."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("PENSTOCK_WITHOUT_JAR") == "1":
            return
        if find_spec("pyspark") is None:
            self.app.display_warning("PySpark is not installed: the wheel has no jar, and Spark reads logs in Python")
            return
        sys.path.insert(0, str(SOURCE))
        try:
            jar = build()
        except Exception as error:
            self.app.abort(f"{error}; PENSTOCK_WITHOUT_JAR=1 builds a wheel without the jar")
        build_data["force_include"][str(jar)] = str(jar.relative_to(SOURCE))


def build() -> Path:
    """Return the jar, after compiling it if its sources are newer."""
    from penstock.pipeline.runtime.jar import FOLDER, jar_path

    jar = jar_path()
    sources = sorted(FOLDER.glob("*.scala"))
    if not jar.exists() or any(jar.stat().st_mtime < source.stat().st_mtime for source in sources):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / jar.name
            _compile(sources, made)
            made.rename(jar)
    return jar


def _compile(sources: list[Path], into: Path) -> None:
    import pyspark

    from penstock.errors import CannotOpen
    from penstock.pipeline.runtime.java import find_java

    java, classes = find_java().home / "bin/java", Path(pyspark.__file__).parent / "jars" / "*"
    done = subprocess.run(
        [java, *COMPILER, "-cp", classes, "scala.tools.nsc.Main", "-usejavacp", "-d", into, *sources],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
    )
    if done.returncode or not into.exists():
        raise CannotOpen(f"cannot compile the log reader: {done.stdout.strip()}")


if __name__ == "__main__":
    build()
