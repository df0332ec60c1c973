"""The single file serves with nothing but Python beside it."""

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

from tools import binary

PATIENCE = 120.0
BARE = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("binary") / "penstock"
    assert binary.build(target) < 64 << 20
    return target


@contextlib.contextmanager
def served(file: Path, folder: Path, **environment: str) -> Iterator[int]:
    """With this environment and no other, by a Python that has no package."""
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


def test_it_serves_in_an_empty_environment(file: Path, tmp_path: Path) -> None:
    with served(file, tmp_path, TMPDIR=str(tmp_path)) as port:
        assert ask(port, "POST", "/queues", {"name": "q"})[0] == 201
        assert ask(port, "POST", "/queues/q/messages", {"payload": 1})[0] == 201
        assert ask(port, "GET", "/docs")[0] == 200
        assert ask(port, "GET", "/metrics")[0] == 200
    (cache,) = tmp_path.glob(f"penstock-{os.getuid()}/*/")
    assert cache.parent.stat().st_mode & 0o077 == 0


def test_it_is_unpacked_once(file: Path, tmp_path: Path) -> None:
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
    assert len(list((tmp_path / ".cache" / "penstock").iterdir())) == 1


def test_a_folder_that_others_can_write_is_refused(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "penstock"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    done = subprocess.run(
        [BARE, "-I", str(file), "--version"],
        env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert "can be written by others" in done.stderr
