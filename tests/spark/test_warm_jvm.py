"""A warm JVM serves one command after another, whatever happened to the last."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from penstock.log.files import FolderLock
from penstock.pipeline.runtime import cds_archive
from penstock.pipeline.runtime.java import cache_folder, find_java
from penstock.pipeline.runtime.warm_jvm import JvmLease, WarmJvm, borrow, stop_warm_jvm
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.strangers import DESERIALISED, REFUSED, answers_to_a_stranger
from tests.spark.support import Work

pytestmark = pytest.mark.spark

WHOSE = "SELECT reflect('java.lang.System', 'getenv', 'JAVA_OF') AS java"
ENDLESS = "SELECT count(*) FROM range(1e9) a CROSS JOIN range(1e9) b"


class Commands:
    def __init__(self, work: Work, cache: Path, here: Path) -> None:
        self._work, self._cache, self._here = work, cache, here

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        where = () if arguments[0] == "warm" else ("--data", str(self._work.data))
        return subprocess.Popen(
            [PENSTOCK, "pipeline", *arguments, *where, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._here,
            env=clean_environment(XDG_CACHE_HOME=str(self._cache), **settings),
        )

    def told(self, *arguments: str, **settings: str) -> Any:
        process = self.start(*arguments, **settings)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return json.loads(out)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """With a resident Java that can be told from others, and a lake to ask."""
    folder = tmp_path_factory.mktemp("resident")
    (folder / "cache/penstock").mkdir(parents=True)
    archive = cds_archive.archive_of(find_java())
    if archive.exists():
        (folder / "cache/penstock" / archive.name).symlink_to(archive)
    work = Work(folder / "data")
    work.push("a", "b")
    work.drained()
    commands = Commands(work, folder / "cache", folder)
    try:
        assert commands.told("warm", JAVA_OF="the one that stays")["running"]
        assert commands.told("run", "--once")["events"] == 3
        yield commands
    finally:
        assert not commands.told("warm", "--stop")["running"]
        work.close_all()


def test_commands_use_it_in_turn_and_in_their_own_folder(commands: Commands, tmp_path: Path) -> None:
    assert commands.told("sql", WHOSE) == {"java": "the one that stays"}
    pq.write_table(pa.table({"n": [1, 2, 3]}), commands._here / "beside.parquet")
    assert commands.told("sql", "SELECT sum(n) AS n FROM parquet.`beside.parquet`") == {"n": 6}
    log = commands._work.data / "lake/logs/spark.log"
    assert log.exists()


def test_a_command_that_needs_another_starts_its_own(commands: Commands) -> None:
    assert commands.told("sql", WHOSE, "--memory", "600m") == {"java": "null"}


def test_one_that_was_killed_leaves_it_to_the_next(commands: Commands) -> None:
    in_use = commands._cache / "penstock/resident.lock"
    before = in_use.stat().st_mtime_ns
    process = commands.start("sql", ENDLESS)
    while in_use.stat().st_mtime_ns == before:
        assert process.poll() is None
    beside = commands.start("sql", WHOSE)
    process_of_its_own, _ = beside.communicate()
    assert json.loads(process_of_its_own) == {"java": "null"}
    keeper = psutil.Process(json.loads((commands._cache / "penstock/resident.json").read_bytes())["pid"])
    java = next(each for each in keeper.children() if each.name() == "java")
    answers = answers_to_a_stranger(java.pid)
    assert not any(DESERIALISED in answer for answer in answers.values())
    assert any(REFUSED in answer for answer in answers.values())
    process.kill()
    process.communicate()
    assert commands.told("sql", WHOSE) == {"java": "the one that stays"}


def test_nor_does_one_killed_before_it_had_a_session(commands: Commands, tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from pyspark import SparkConf, SparkContext
from penstock.pipeline.runtime.warm_jvm import borrow
conf = SparkConf(loadDefaults=False).setMaster("local[1]").setAppName("killed")
SparkContext(gateway=borrow("1g").gateway(pathlib.Path({str(tmp_path / "log4j")!r})), conf=conf)
os.kill(os.getpid(), 9)
"""
    environment = clean_environment(XDG_CACHE_HOME=str(commands._cache))
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == -9
    assert commands.told("sql", WHOSE) == {"java": "the one that stays"}


def test_nor_does_one_whose_context_comes_after_its_end(commands: Commands, tmp_path: Path) -> None:
    log = str(tmp_path / "spark.log")
    killed = """
import os
from pyspark import SparkConf, SparkContext
from penstock.pipeline.runtime.gateway import gateway_at
from penstock.pipeline.runtime.warm_jvm import find_warm_jvm
found = find_warm_jvm()
conf = SparkConf(loadDefaults=False).setMaster("local[1]").setAppName("killed")
SparkContext(gateway=gateway_at(found.port, found.secret), conf=conf)
os.kill(os.getpid(), 9)
"""
    program = f"""
import pathlib, subprocess, sys
from penstock.pipeline.runtime.warm_jvm import JvmLease, borrow
from penstock.pipeline.runtime.session import open_session
class Late(JvmLease):
    def gateway(self, log4j):
        found = super().gateway(log4j)
        assert subprocess.run([sys.executable, "-c", {killed!r}]).returncode == -9
        return found
borrowed = borrow("1g")
session = open_session(pathlib.Path({log!r}), borrowed=Late(borrowed._resident, borrowed._lock))
print(session.sql({WHOSE!r}).first().java)
session.stop()
"""
    environment = clean_environment(XDG_CACHE_HOME=str(commands._cache))
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout == "the one that stays\n", ran.stderr


def test_a_second_is_not_started(commands: Commands) -> None:
    assert commands.told("warm")["pid"] == commands.told("warm", "--minutes", "1")["pid"]


def test_one_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    gone = WarmJvm(pid=os.getpid(), port=port, secret="", memory="1g", java="", spark="", minutes=1)
    assert JvmLease(gone, FolderLock(tmp_path / "lock")).gateway(tmp_path / "log4j") is None


def test_the_number_of_a_keeper_that_was_killed_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = subprocess.Popen(["sleep", "60"])
    try:
        left = WarmJvm(pid=other.pid, port=1, secret="", memory="1g", java="", spark="", minutes=1)
        (cache_folder() / "resident.json").write_bytes(msgspec.json.encode(left))
        assert not stop_warm_jvm()
        assert other.poll() is None
        assert not (cache_folder() / "resident.json").exists()
    finally:
        other.kill()
        other.wait()


def test_the_port_of_a_keeper_that_was_killed_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, java = silent.getsockname()[1], str(find_java().home)
        left = WarmJvm(pid=1, port=port, secret="", memory="1g", java=java, spark=pyspark.__file__, minutes=1)
        (cache_folder() / "resident.json").write_bytes(msgspec.json.encode(left))
        assert borrow("1g") is None
