"""Measures how long a newcomer waits: from `git clone` to the first message over HTTP, and on to a chart from Spark.

    python -m tools.first_hour            # clones this repository and installs everything without pip's cache

Exits with 1 if a step exceeds its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MESSAGE_SECONDS_MAX = 180.0
CHART_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.2
STEP_SECONDS_MAX = 1_800.0


def environment(home: Path) -> dict[str, str]:
    """Return an environment with only PATH, a new home, and the settings for certificates, proxies and pip."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "https"))}
    return kept | {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_NO_CACHE_DIR": "1"}


@contextlib.contextmanager
def running(words: list[str], folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, cwd=folder, env=env, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def post(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


def wait_until(done: Path | str, process: subprocess.Popen[bytes]) -> None:
    """Wait wait_until a file exists, or wait_until a server accepts a message."""
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while time.monotonic() < deadline:
        if isinstance(done, Path):
            if done.exists():
                return
        else:
            with contextlib.suppress(OSError):
                post(done, {"body": "hello"})
                return
        if process.poll() is not None:
            raise SystemExit(f"the process ended with {process.returncode}")
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"not done after {STEP_SECONDS_MAX:.0f} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-hour-") as name:
        home, clone = Path(name) / "home", Path(name) / "clone"
        home.mkdir()
        env = environment(home)
        began = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, env=env)
        port = free_port()
        with running(["make", "serve", f"ARGS=--port {port}"], clone, env) as process:
            wait_until(f"http://127.0.0.1:{port}/v1/messages", process)
        message = time.monotonic() - began
        words = ["make", "demo", f"ARGS=--port {port} --data demo-data --no-browser"]
        began = time.monotonic()
        with running(words, clone, env) as process:
            wait_until(clone / "demo-data" / "report.html", process)
        chart = time.monotonic() - began
    for what, seconds, most in (
        ("git clone to the first message over HTTP", message, MESSAGE_SECONDS_MAX),
        ("make demo to a chart from Spark", chart, CHART_SECONDS_MAX),
    ):
        print(f"{what:45} {seconds:6.1f} s   (at most {most:.0f})")
    return 0 if message <= MESSAGE_SECONDS_MAX and chart <= CHART_SECONDS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
