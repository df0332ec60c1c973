"""A Spark session that starts fast and keeps quiet: what Spark has to say goes to a log file."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.errors import CannotOpen
from penstock.pipeline.runtime.cds_archive import java_options
from penstock.pipeline.runtime.gateway import start_java
from penstock.pipeline.runtime.jar import settings as reader_settings
from penstock.pipeline.runtime.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from penstock.pipeline.runtime.warm_jvm import JvmLease

LOCAL = "local[*]"
DRIVER_MEMORY = "1g"
TASK_TRIES = 4
# Spark asks of each value whether it is null, and Arrow checks that and the bounds once more: a fifth of reading.
UNCHECKED_ARROW = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# The driver listens even if nobody else takes part, and would read objects of any local user. Where one process is all
# there is, Spark makes a random secret; a cluster needs its own.
SECURED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
JOINTS = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
}
CANCEL_SECONDS = 0.1
# How long a Ctrl-C waits for the jobs that run to be cancelled, lest that strike what is asked for next. Java may not
# answer, or its thread may need what the interrupted one holds.
FIRST_CANCEL_SECONDS = 1.0
# Modules whose calls may wait for a job.
AT_WORK = ("py4j.", "pyspark.", "penstock.pipeline.")
_LOG4J = """\
status = off
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def open_session(
    log: Path,
    *,
    master: str = LOCAL,
    memory: str = DRIVER_MEMORY,
    brief: bool = False,
    settings: Mapping[str, str] | None = None,
    keep_classes: Path | None = None,
    borrowed: JvmLease | None = None,
) -> SparkSession:
    """A session of this process; there is one at a time. `log` takes all that Spark and its workers print.

    A `brief` one answers sooner and computes slower. `settings` are Spark's own, and come before those chosen here.
    `keep_classes` is where its Java leaves them when it ends. With a `borrowed` Java that answers none is started.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise CannotOpen("PySpark is not installed", hint="pip install 'penstock-mq[spark]'") from error
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # It prints what the exception says anyway.
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(_repeating(master)).setAppName("penstock")
    log4j = _write_log4j(log)
    ours = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": shlex.join(_java_options(java, log4j, brief, keep_classes)),
        **_settings(master),
        **reader_settings(),
    }
    for name, value in _joined(ours, settings or {}).items():
        conf.set(name, value)
    gateway = None if borrowed is None else borrowed.gateway(log4j)
    context = SparkContext(gateway=start_java(conf, log), conf=conf) if gateway is None else _within(gateway, conf)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupting(context))
    session = SparkSession(context)
    atexit.register(session.stop)
    return session


def _within(gateway: Any, conf: SparkConf) -> SparkContext:
    """A context in a Java that others used before."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    from penstock.pipeline.runtime.warm_jvm import end_what_is_left

    try:
        return SparkContext(gateway=gateway, conf=conf)
    except Py4JJavaError:
        # Java went on to make the context of a command that was killed meanwhile.
        end_what_is_left(gateway.jvm)
        return SparkContext(gateway=gateway, conf=conf)


def _interrupting(context: SparkContext) -> Callable[[int, FrameType | None], None]:
    """As Spark takes a Ctrl-C, but on a thread of its own: this one may be in the midst of a talk with Java.

    What was asked for may not be a job yet, and PySpark waits for its end all the same: jobs are cancelled until the
    call that was interrupted is over, and none that is asked for after it.
    """

    def is_on(call: FrameType) -> bool:
        return call in _frames(sys._current_frames().get(threading.main_thread().ident or 0))

    def cancel(call: FrameType | None, first: threading.Event) -> None:
        with suppress(Exception):  # It may have been stopped.
            context.cancelAllJobs()
        first.set()
        while call is not None and is_on(call):
            with suppress(Exception):
                jobs = context.statusTracker().getActiveJobsIds()
                if is_on(call):  # Or a job may be of the next call.
                    for job in jobs:
                        context._jsc.sc().cancelJob(job)
            time.sleep(CANCEL_SECONDS)

    def interrupt(number: int, frame: FrameType | None) -> None:
        calls = [each for each in _frames(frame) if each.f_globals.get("__name__", "").startswith(AT_WORK)]
        first = threading.Event()
        start_new_thread(cancel, (calls[-1] if calls else None, first))
        first.wait(FIRST_CANCEL_SECONDS)
        raise KeyboardInterrupt

    return interrupt


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _joined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Given values win over ours, but where both can stand: dropped, ours would take the log or the reader away."""
    both = {
        name: f"{ours[name]}{JOINTS[name]}{value}" for name, value in given.items() if name in JOINTS and name in ours
    }
    return {**ours, **given, **both}


def _repeating(master: str) -> str:
    """Unlike a cluster, a local master gives up when one task fails once, as when its Python worker is killed."""
    found = re.fullmatch(r"local\[(\d+|\*)\]", master)
    return f"local[{found[1]},{TASK_TRIES}]" if found else master


def cores_of(session: SparkSession) -> int:
    return int(session.sparkContext.defaultParallelism)


def _settings(master: str) -> dict[str, str]:
    local = master.startswith("local")
    return (
        {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.adaptive.enabled": "false" if local else "true",
            "spark.sql.shuffle.partitions": "2" if local else "32",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.executor.extraJavaOptions": " ".join(UNCHECKED_ARROW),
            "spark.sql.warehouse.dir": str(cache_folder() / "warehouse"),
        }
        | (LOCAL_SETTINGS if local else {})
        | (SECURED if re.match(r"local(\[|$)", master) else {})
    )


def _write_log4j(log: Path) -> Path:
    path = log.with_suffix(".log4j2.properties")
    path.write_text(_LOG4J.format(log=json.dumps(str(log.absolute()))[1:-1]))  # Java reads it as Latin-1.
    return path


def _java_options(java: Java, log4j: Path, brief: bool, keep_classes: Path | None) -> list[str]:
    return [
        f"-Dlog4j2.configurationFile={log4j.absolute().as_uri()}",
        "-Djdk.lang.Process.launchMechanism=VFORK",
        "-XX:+UseParallelGC",
        *UNCHECKED_ARROW,
        "-Dfile.encoding=UTF-8",
        *(["-XX:TieredStopAtLevel=1"] if brief else []),
        *java_options(java, keep_classes),
    ]
