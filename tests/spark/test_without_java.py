"""Without Java on the machine, the server runs, and the pipeline uses the Java of a wheel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE
from tests.integration.command_line import PATIENCE_SECONDS, PENSTOCK, clean_environment, wait_for_address
from tests.integration.serving import Client
from tests.spark.support import rows_of

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which every program of this machine is found, but for Java's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            if program.is_file() and not _of_java(program) and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    env = clean_environment(PATH=str(programs), XDG_CACHE_HOME=str(tmp_path / "cache"))
    env.pop("JAVA_HOME", None)
    assert subprocess.run(["sh", "-c", "command -v java"], env=env, stdout=subprocess.DEVNULL).returncode != 0
    return env


def _of_java(program: Path) -> bool:
    return program.name == "java" or "jvm" in Path(os.path.realpath(program)).parts


@pytest.fixture
def served(bare: dict[str, str], tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """By `make serve`: the data folder and the address."""
    data, said = tmp_path / "data", tmp_path / "said"
    command = ["make", "--no-print-directory", "-C", str(ROOT), "serve", f"ARGS=--port 0 --data {data}"]
    with said.open("wb") as sink:
        process = subprocess.Popen(command, env=bare, stderr=sink, stdout=sink)
    try:
        yield data, wait_for_address(process, said)
        (server,) = psutil.Process(process.pid).children(recursive=True)
        server.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        for each in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            each.kill()
        process.wait()


def test_make_serve_and_the_pipeline_work_with_the_java_of_the_wheel(
    served: tuple[Path, str], bare: dict[str, str], tmp_path: Path
) -> None:
    data, url = served
    with Client("127.0.0.1", int(url.rpartition(":")[2])) as client:
        path = client.queue("mail")
        assert client.post(f"{path}/messages", {"payload": "hello"}).status == 201
    command = [PENSTOCK, "pipeline", "run", "--once", "--json", "--master", "local[1]", "--data", str(data)]
    ran = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["events"] >= 2
    pushed = [row for row in rows_of(Lake(data / "lake"), BRONZE) if row["kind"] == "pushed"]
    assert [row["queue"] for row in pushed] == ["mail"]
    assert list((tmp_path / "cache" / "penstock").glob("java-*/bin/java"))
