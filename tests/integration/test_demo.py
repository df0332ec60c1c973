"""`penstock demo` without Spark: traffic through every API, a clean shutdown, and no leftovers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.config import Settings
from penstock.demo.run import demo
from penstock.store.sqlite import SqliteStore
from tests.integration.serving import RUN, clean_environment

PATIENCE = 120.0


def test_every_api_has_traffic_even_with_a_proxy_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with demo(Settings(port=0, data=str(tmp_path), access_log=False), spark=False, pace=0.05) as (server, shop, _):
        tick = threading.Event()
        for _ in range(int(PATIENCE / 0.05)):
            if all(shop.done.values()):
                break
            tick.wait(0.05)
        assert all(shop.done.values()), shop.done
        with penstock.connect(server.url) as client:
            names = {queue.name for queue in client.queues()}
            consumers = {consumer.name for consumer in client.stream("clicks").consumers()}
        workers: set[str] = set()
        for _ in range(int(PATIENCE / 0.05)):
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server.url}/workers") as answer:
                workers = {worker["name"] for worker in json.load(answer)["workers"] if worker["kind"] == "consumer"}
            if len(workers) == 3:
                break
            tick.wait(0.05)
    assert {"emails", "reminders", "shop/orders/new"} <= names
    assert consumers == {"billing", "search"}
    assert workers == {"mailer", "packer", "reminder"}, "the dashboard lists workers"
    assert shop.errors == []


def test_the_pipeline_ends_with_a_demo_that_was_killed(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "penstock.db", journal=True).close()
    started = (
        "import sys, threading; from pathlib import Path; from penstock.demo.run import Refreshing;"
        "print(Refreshing(Path(sys.argv[1]))._process.pid, flush=True); threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", started, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pipeline = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    try:
        assert select.select([pipeline], [], [], PATIENCE)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pipeline, signal.SIGKILL)
        os.close(pipeline)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_stops_cleanly_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    # The test runner may ignore SIGHUP, and child processes inherit that.
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); {RUN}"
    words = [sys.executable, "-c", program, "demo", "--port", "0", "--no-spark", "--no-browser"]
    environment = clean_environment() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            shown = process.stderr.readline()
            assert re.match(r"dashboard: http://127\.0\.0\.1:\d+/", shown)
            process.send_signal(number)
            rest = process.communicate(timeout=PATIENCE)[1]
        finally:
            process.kill()
    assert process.returncode == 0, rest
    assert "done: " in rest
    assert "errors" not in rest
    assert list(tmp_path.iterdir()) == []
