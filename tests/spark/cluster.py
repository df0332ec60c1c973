"""Spark's standalone cluster on this machine: a master and workers in their own processes."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import psutil
import pyspark

from penstock.pipeline.runtime.java import find_java

PATIENCE_SECONDS = 600
# Five Javas of some seconds each: compiling well is not worth their while.
LOCALLY = {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
_CLASSES = "org.apache.spark.deploy"
_LOCALLY = ("--host", "127.0.0.1", "--webui-port", "0")


class Standalone:
    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._started = 0
        self.master = self._start("master.Master", "--port", "0")
        self.url = self._find(r"Starting Spark master at (spark://\S+)")
        self.workers = [self._worker() for _ in range(workers)]
        self._find(*[r"Registering worker"] * workers)

    def _worker(self) -> subprocess.Popen[bytes]:
        self._started += 1
        work = self._folder / f"work{self._started}"
        return self._start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {"SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home)} | LOCALLY
        with (self._folder / "cluster.log").open("ab") as log:
            return subprocess.Popen(
                [home / "bin/spark-class", f"{_CLASSES}.{name}", *_LOCALLY, *arguments],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def _find(self, *patterns: str) -> str:
        """Of the last of these, each found after the one before, its group if it has one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            text = (self._folder / "cluster.log").read_text()
            found = re.search(".*?".join(patterns), text, re.S)
            if found:
                return found[found.lastindex or 0]
            time.sleep(0.1)
        raise AssertionError(text)

    def replace_worker(self, number: int = 0) -> None:
        self.workers[number] = self._worker()

    def close(self) -> None:
        for process in [*self.workers, self.master]:
            if process.poll() is None:
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
                process.kill()
            process.wait()
