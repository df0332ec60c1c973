"""First steps of a new user, and the error messages if a step fails."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.integration.command_line import clean_environment
from tests.integration.serving import running


def test_an_error_over_http_names_its_field(tmp_path: Path) -> None:
    with running(tmp_path) as server, penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        with pytest.raises(penstock.InvalidInput, match=r"max_attempts: expected `int` >= 1"):
            client.create_queue("q", max_attempts=0)
        queue = client.create_queue("q")
        with pytest.raises(penstock.InvalidInput, match="limit: "):
            queue.peek(0)


def test_serving_without_the_extra_names_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None; sys.argv = ['penstock', 'serve', '--port', '0'];"
        "from penstock.cli import main; main()"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'penstock-mq[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_knows_its_version() -> None:
    assert penstock.__version__ == importlib.metadata.version("penstock-mq")


def test_a_worker_needs_no_parentheses() -> None:
    with penstock.connect("sqlite:///:memory:") as client:
        queue = client.create_queue("q")
        done = []

        @queue.worker
        def work(message: penstock.LeasedMessage) -> None:
            done.append(message.payload)
            work.stop()

        queue.push("x")
        work.run()
        assert done == ["x"]
        with pytest.raises(penstock.WrongType, match="expected a function, got int"):
            queue.worker(8)  # type: ignore[call-overload]


def put(queue: penstock.LiteQueue) -> None:
    with queue:
        queue.put(b"from a spawned process")


def test_an_embedded_queue_can_be_passed_to_a_spawned_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.LiteQueue("q.db", max_retries=2) as queue:
        process = multiprocessing.get_context("spawn").Process(target=put, args=(queue,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        message = queue.pop()
        assert message is not None
        assert message.data == b"from a spawned process"
    with penstock.LiteQueue(":memory:") as memory, pytest.raises(TypeError, match="cannot pickle"):
        multiprocessing.get_context("spawn").Process(target=put, args=(memory,)).start()
