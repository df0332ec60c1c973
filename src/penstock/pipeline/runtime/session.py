"""Opens a Spark session that starts fast and logs to a file instead of the terminal."""

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
OLDEST_SPARK = (4, 2)
DRIVER_MEMORY = "1g"
TASK_TRIES = 4
# Spark checks each value for null, and Arrow checks that and the bounds again, which costs a fifth of reading.
UNCHECKED_ARROW = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# The driver listens even without a cluster, and would deserialize objects from any local user. In local mode Spark
# generates a random secret; a cluster needs its own.
SECURED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
SEPARATORS = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
}
CANCEL_SECONDS = 0.1
# How long a Ctrl-C waits for running jobs to be cancelled, so that the cancellation does not hit the next call. It is
# limited, because the JVM may not respond, or its thread may need a lock that the interrupted one holds.
FIRST_CANCEL_SECONDS = 1.0
# Prefixes of modules whose calls may wait for a job.
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
    """Open this process's session; there is one at a time. Spark and its workers print to `log`.

    A `brief` session starts faster and computes slower. `settings` are Spark's and override the defaults here.
    `keep_classes` is where the JVM writes its CDS archive at exit. A `borrowed` JVM is used if it responds.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise CannotOpen("PySpark is not installed", hint="pip install 'penstock-mq[spark]'") from error
    check_version()
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # It repeats the exception's message.
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(_repeating(master)).setAppName("penstock")
    log4j = _write_log4j(log)
    defaults = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": shlex.join(_java_options(java, log4j, brief, keep_classes)),
        **_settings(master),
        **reader_settings(),
    }
    for name, value in _joined(defaults, settings or {}).items():
        conf.set(name, value)
    gateway = None if borrowed is None else borrowed.gateway(log4j)
    context = SparkContext(gateway=start_java(conf, log), conf=conf) if gateway is None else _context_in(gateway, conf)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt_handler(context))
    session = SparkSession(context)
    atexit.register(session.stop)
    return session


def check_version() -> None:
    """Raise if PySpark is older than what the pipeline is tested with. Only `format("penstock")` works with those."""
    from pyspark import __version__

    if tuple(map(int, __version__.split(".")[:2])) < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        hint = "pip install -U 'penstock-mq[spark]', or use format(\"penstock\") in a session of your own"
        raise CannotOpen(f"PySpark {__version__} is too old: the pipeline needs {oldest}", hint=hint)


def _context_in(gateway: Any, conf: SparkConf) -> SparkContext:
    """Create a context in a JVM that other commands used before."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    from penstock.pipeline.runtime.warm_jvm import stop_leftover_context

    try:
        return SparkContext(gateway=gateway, conf=conf)
    except Py4JJavaError:
        # The JVM went on to create the context of a command that was killed meanwhile.
        stop_leftover_context(gateway.jvm)
        return SparkContext(gateway=gateway, conf=conf)


def _interrupt_handler(context: SparkContext) -> Callable[[int, FrameType | None], None]:
    """Return a Ctrl-C handler that cancels jobs like Spark's, but on another thread: this one may be in a JVM call.

    The interrupted call may not have started its job yet, and PySpark waits for it anyway: cancel jobs until that call
    has returned, and none of the next call.
    """

    def is_running(call: FrameType) -> bool:
        return call in _frames(sys._current_frames().get(threading.main_thread().ident or 0))

    def cancel(call: FrameType | None, first: threading.Event) -> None:
        with suppress(Exception):  # The context may have been stopped.
            context.cancelAllJobs()
        first.set()
        while call is not None and is_running(call):
            with suppress(Exception):
                jobs = context.statusTracker().getActiveJobsIds()
                if is_running(call):  # Otherwise a job may belong to the next call.
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


def _joined(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Override defaults by given values, but append to lists: without the defaults, log and reader would be lost."""
    both = {
        name: f"{defaults[name]}{SEPARATORS[name]}{value}"
        for name, value in given.items()
        if name in SEPARATORS and name in defaults
    }
    return {**defaults, **given, **both}


def _repeating(master: str) -> str:
    """Allow task retries: a local master, unlike a cluster, fails a job after one failed task."""
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
    path.write_text(
        _LOG4J.format(log=json.dumps(str(log.absolute()))[1:-1])
    )  # JSON escapes, because Java reads properties as Latin-1.
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
