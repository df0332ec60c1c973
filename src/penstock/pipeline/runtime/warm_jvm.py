"""A JVM that outlives a command, so that the next one starts with loaded and compiled classes and a new session.

One command at a time can lease it; others start their own. `penstock pipeline warm` starts a process that keeps it and
ends it after a time without use:

    python -m penstock.pipeline.runtime.warm_jvm --minutes 30 --memory 1g
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from penstock.core.signals import StopFlag
from penstock.errors import CannotOpen, StoreBusy
from penstock.log.files import DISK, FolderLock, replace
from penstock.pipeline.runtime.gateway import gateway_at
from penstock.pipeline.runtime.java import cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS_MAX = 180
LOOK_SECONDS = 0.5
_FILE, _KEEPER, _IN_USE, LOG = "resident.json", "resident.keeper", "resident.lock", "resident.log"


class WarmJvm(Struct, frozen=True, kw_only=True):
    """Address of a warm JVM, and the settings that a command must share to use it."""

    pid: int
    """The process that keeps the JVM."""
    port: int
    secret: str
    memory: str
    java: str
    spark: str
    """Path of the PySpark installation."""
    minutes: float


class JvmLease:
    """Exclusive use of a warm JVM until it is released or the process ends."""

    def __init__(self, resident: WarmJvm, lock: FolderLock) -> None:
        self._resident = resident
        self._lock = lock

    def gateway(self, log4j: Path) -> Any | None:
        """Return a gateway to the JVM as if it were new: no leftover context, this log, this working directory.

        None if the JVM does not respond properly.
        """
        from py4j.protocol import Py4JError

        try:
            gateway = gateway_at(self._resident.port, self._resident.secret)
            jvm = gateway.jvm
            stop_leftover_context(jvm)
            log4j_uri = jvm.java.net.URI(log4j.absolute().as_uri())
            jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(log4j_uri)
            files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.org.apache.hadoop.conf.Configuration())
            files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(str(Path.cwd())))
        except (Py4JError, OSError):
            return None
        return gateway

    def give_back(self) -> None:
        (cache_folder() / _IN_USE).touch()
        self._lock.close()


def stop_leftover_context(jvm: Any) -> None:
    """Stop the context and session that a killed command left behind."""
    left = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    if left.isDefined():
        left.get().stop()
    jvm.SparkSession.clearDefaultSession()


def borrow(memory: str) -> JvmLease | None:
    """Lease the warm JVM if there is one, its settings match and it is free."""
    if find_warm_jvm() is None or not _is_kept():
        return None
    try:
        lock = FolderLock(cache_folder() / _IN_USE, patience_s=0)
    except (StoreBusy, CannotOpen):
        return None
    found = find_warm_jvm()
    if found is None or (found.memory, found.java, found.spark) != (memory, str(find_java().home), _spark()):
        lock.close()
        return None
    (cache_folder() / _IN_USE).touch()
    return JvmLease(found, lock)


def _is_kept() -> bool:
    """Return True if the keeper still runs: after a kill, another program may use its port."""
    try:
        FolderLock(cache_folder() / _KEEPER, patience_s=0).close()
    except StoreBusy:
        return True
    return False


def find_warm_jvm() -> WarmJvm | None:
    try:
        return msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=WarmJvm)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def start_warm_jvm(minutes: float, memory: str) -> WarmJvm:
    """Start a warm JVM, or return the one that is running."""
    log = cache_folder() / LOG
    with log.open("ab") as sink:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, "--minutes", str(minutes), "--memory", memory],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        found = find_warm_jvm()
        if found is not None and (found.pid == keeper.pid or keeper.poll() is not None):
            return found
        if keeper.poll() is not None:
            raise CannotOpen("cannot start Spark", hint=f"see {log}")
        time.sleep(0.05)
    keeper.terminate()
    raise CannotOpen(f"Spark did not start within {START_SECONDS_MAX} s", hint=f"see {log}")


def stop_warm_jvm() -> bool:
    """Stop the warm JVM once the command that uses it is done. Return True if there was one."""
    found = find_warm_jvm()
    if found is None:
        return False
    (cache_folder() / _FILE).unlink(missing_ok=True)
    try:
        FolderLock(cache_folder() / _KEEPER, patience_s=0).close()
        return False  # The keeper was killed, and its pid may belong to another process.
    except StoreBusy:
        os.kill(found.pid, signal.SIGTERM)
    FolderLock(cache_folder() / _KEEPER, wait=True).close()
    return True


def keep(minutes: float, memory: str) -> None:
    folder, stop = cache_folder(), StopFlag()
    try:
        alone = FolderLock(folder / _KEEPER, patience_s=0)
    except StoreBusy:
        return  # Another keeper is running.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    spark = _warmed(folder / LOG, memory)
    gateway: Any = spark.sparkContext._gateway
    record = WarmJvm(
        pid=os.getpid(),
        port=gateway.java_parameters.port,
        secret=gateway.java_parameters.auth_token,
        memory=memory,
        java=str(find_java().home),
        spark=_spark(),
        minutes=minutes,
    )
    replace(DISK, folder / _FILE, msgspec.json.encode(record))
    _wait_until_idle(folder / _IN_USE, minutes * 60, gateway.proc, stop)
    (folder / _FILE).unlink(missing_ok=True)
    gateway.proc.stdin.close()  # The JVM exits when its stdin closes.
    gateway.proc.wait()
    alone.close()


def _warmed(log: Path, memory: str) -> SparkSession:
    """Return a stopped session whose JVM has run every kind of work once."""
    from penstock.pipeline.runtime.cds_archive import use_spark
    from penstock.pipeline.runtime.session import open_session

    spark = open_session(log, memory=memory)
    use_spark(spark)
    spark.stop()
    return spark


def _wait_until_idle(in_use: Path, seconds: float, java: subprocess.Popen[bytes], stop: StopFlag) -> None:
    """Wait until the JVM is unused for `seconds`, has exited or should stop; hold its lock so that nobody leases it."""
    in_use.touch(0o600)
    while java.poll() is None and not stop.wait(LOOK_SECONDS):
        if time.time() - in_use.stat().st_mtime > seconds:
            with suppress(StoreBusy):
                FolderLock(in_use, patience_s=0)
                return
    if java.poll() is None:
        FolderLock(in_use, wait=True)


def _spark() -> str:
    import pyspark

    return pyspark.__file__


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--memory", default="1g")
    keep(**vars(parser.parse_args()))
