"""Node and a browser for the tests of JavaScript code, and a clock that tests can move."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.core.model import system_clock
from tests.integration.command_line import PENSTOCK, clean_environment
from tools import provision

CLIENT = Path(__file__).parents[2] / "clients" / "js"
PATIENCE_SECONDS = 280


def missing(what: str) -> str:
    """Skip the test because a program is missing, or fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


def node(*arguments: str | Path, folder: Path | None = None, **environment: str) -> str:
    """Run a program with Node, and return its output if it succeeds."""
    program = shutil.which("node") or missing("Node")
    try:
        done = subprocess.run(
            [program, *map(str, arguments)],
            cwd=folder,
            env=clean_environment(**environment) | {"PENSTOCK": PENSTOCK},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"it did not end; its output was: {(late.output or b'').decode()}")
    assert done.returncode == 0, done.stdout
    return done.stdout


def install(folder: Path, name: str) -> None:
    """Install the client as a package of this name, as npm would."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / name).symlink_to(CLIENT)
    (folder / "package.json").write_text('{"type": "module"}')


class MovableClock:
    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return system_clock() + self.ahead_ms


class Pages(SimpleHTTPRequestHandler):
    """Serves the client's files, and receives the reports of the pages."""

    reports: ClassVar[queue.Queue[Any]]

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def pages() -> Iterator[tuple[str, queue.Queue[Any]]]:
    """Yield the address, and a queue of the pages' reports."""
    reports: queue.Queue[Any] = queue.Queue()
    handler = partial(type("ReportingPages", (Pages,), {"reports": reports}), directory=str(CLIENT))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", reports
        finally:
            server.shutdown()
            thread.join()


def find_browser() -> str:
    found = json.loads(provision.CHOICE.read_text())["browser"]
    return found["path"] if found else missing("a browser")


@contextmanager
def browser(program: str, address: str) -> Iterator[None]:
    """Open a page in a headless browser."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        running = subprocess.Popen(
            [program, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            running.terminate()
            running.wait(PATIENCE_SECONDS)
