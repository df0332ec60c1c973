"""Starts Spark's JVM and connects to it."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import CannotOpen

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.02
# A process may stop responding shortly before it exits.
END_SECONDS = 1.0
# Java takes the encoding of file names from the locale.
JAVA_ENVIRONMENT = {"SPARK_CONNECT_MODE": "0", "LC_ALL": "C.UTF-8"}


def start_java(conf: SparkConf, log: Path) -> Any:
    """Start a JVM like PySpark, but leave none behind on an interrupt and shield it from the terminal's Ctrl-C."""
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.serializers import UTF8Deserializer, read_int

    settings = [word for name, value in conf.getAll() for word in ("--conf", f"{name}={value}")]
    rest = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory() as folder:
        connection_info = Path(folder, "gateway")
        with log.open("ab") as sink:
            java = subprocess.Popen(
                [Path(_find_spark_home(), "bin/spark-submit"), *settings, *rest],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=os.environ | JAVA_ENVIRONMENT | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_info)},
                start_new_session=True,
            )
        try:
            while not connection_info.exists():
                if java.poll() is not None:
                    raise CannotOpen("cannot start Spark", hint=f"see {log}")
                time.sleep(LOOK_SECONDS)
            with connection_info.open("rb") as info:
                gateway = gateway_at(read_int(info), UTF8Deserializer().loads(info))  # type: ignore[no-untyped-call]
        except BaseException:
            with suppress(ProcessLookupError):  # It may have exited by itself.
                os.killpg(java.pid, signal.SIGKILL)
            java.communicate()
            raise
    gateway.proc = java
    return gateway


def gateway_at(port: int, secret: str) -> Any:
    """Connect to a running JVM."""
    from pyspark.java_gateway import launch_gateway

    connection_info = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(connection_info)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in connection_info:
            del os.environ[name]


class JavaEnded(CannotOpen):
    """Spark's JVM was killed or ran out of memory."""


def has_java_ended(session: SparkSession, error: BaseException) -> bool:
    """Return True if a call to Spark failed because its JVM has exited."""
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    if java is None:  # The JVM belongs to another process.
        return _is_lost_connection(error)
    if not _is_lost_connection(error):
        return java.poll() is not None
    try:
        java.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_lost_connection(error: BaseException | None) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    while error is not None:
        if isinstance(error, ConnectionRefusedError | ConnectionResetError | EOFError):
            return True
        if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
            return True
        error = error.__context__
    return False


def forget_java(session: SparkSession) -> None:
    """Stop a session whose JVM has exited, so that this process can start another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    atexit.unregister(session.stop)
    with warnings.catch_warnings(action="ignore"), suppress(Exception):  # Every call to the JVM fails.
        session.stop()
    with suppress(Exception):
        session.sparkContext._gateway.shutdown()  # type: ignore[union-attr]
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def close_java(session: SparkSession) -> None:
    """Stop the session and wait for its JVM to exit."""
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    atexit.unregister(session.stop)
    java.stdin.close()
    java.wait()
