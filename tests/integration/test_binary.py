"""The single-file server needs nothing but Python."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
BARE = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("binary") / "penstock"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    subprocess.run(["make", "binary", f"BINARY={target}"], cwd=ROOT, env=environment, check=True)
    assert target.stat().st_size < 64 << 20
    return target


@contextlib.contextmanager
def served(file: Path, folder: Path, **environment: str) -> Iterator[int]:
    """Run the server with exactly this environment, on a Python without installed packages."""
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [BARE, "-I", str(file), "serve", "--port", "0"], cwd=folder, env=environment, stderr=sink, stdout=sink
        )
    try:
        for _ in range(int(PATIENCE / 0.05)):
            found = re.search(r"listens on http://127.0.0.1:(\d+)", log.read_text())
            if found:
                break
            assert process.poll() is None, log.read_text()
            threading.Event().wait(0.05)
        yield int(found[1])  # type: ignore[index]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_binary_runs_in_an_empty_environment(file: Path, tmp_path: Path) -> None:
    with served(file, tmp_path, SHIV_ROOT=str(tmp_path / "unpacked")) as port:
        assert ask(port, "POST", "/queues", {"name": "q"})[0] == 201
        assert ask(port, "POST", "/queues/q/messages", {"payload": 1})[0] == 201
        assert ask(port, "GET", "/docs")[0] == 200
        assert ask(port, "GET", "/metrics")[0] == 200


def test_the_binary_is_unpacked_once(file: Path, tmp_path: Path) -> None:
    shown = [
        subprocess.run(
            [BARE, "-I", str(file), "--version"],
            env={"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert shown[0] == shown[1]
    assert shown[0].startswith("penstock, version ")
    assert len(list((tmp_path / ".shiv").glob("penstock_*"))) == 1


def test_a_python_that_cannot_load_its_extension_modules_is_named() -> None:
    preamble = ROOT / "tools" / "binary_preamble.py"
    done = subprocess.run([BARE, "-I", "-S", str(preamble)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: this file was built for another version of Python or another platform")
