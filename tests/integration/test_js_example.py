"""Runs the example of the tree API's first client word for word, on Node and in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.store.interface import Store
from penstock.store.sqlite import SqliteStore
from tests.conformance.support import eventually
from tests.integration.javascript import (
    CLIENT,
    PATIENCE_SECONDS,
    MovableClock,
    browser,
    find_browser,
    install,
    node,
    pages,
)
from tests.integration.serving import Running

EXAMPLE = CLIENT / "tests" / "examples" / "basic_usage.js"
QUEUE = "/queues/email-service%2Fnotifications%2Fhigh-priority"
PAYLOAD = {"to": "user@example.com", "template": "welcome"}
DELAYED_MS, WINDOW_MS = 60_000, 30_000


class MovableClockServer(Running):
    """A server whose clock can be moved."""

    def __init__(self, settings: Settings) -> None:
        self.clock = MovableClock()
        super().__init__(settings)

    def _open(self) -> tuple[Store, str]:
        path = str(Path(self.settings.data) / "penstock.db")
        return SqliteStore(path, clock=self.clock, journal=True), path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MovableClockServer]:
    settings = Settings(port=0, data=str(tmp_path), access_log=False, canary_ms=0, cors_origins=["*"])
    server = MovableClockServer(settings)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def clock_moved_on_poll(server: MovableClockServer) -> Iterator[None]:
    """Move the clock past the delay and the window once the message waits. A resume makes the poll check the time."""

    def move_clock() -> None:
        with server.client() as client:
            eventually(lambda: client.get(QUEUE).json.get("scheduled") == 1)
            eventually(lambda: server.app.broker.polls == 1)
            server.clock.ahead_ms += DELAYED_MS + WINDOW_MS
            client.post(f"{QUEUE}/resume")

    passing = threading.Thread(target=move_clock)
    passing.start()
    yield
    passing.join(PATIENCE_SECONDS)


def acked(server: MovableClockServer) -> int:
    with server.client() as client:
        total: int = client.get(QUEUE).json["totals"]["acked"]
        return total


def test_the_example_runs_word_for_word_on_node(server: MovableClockServer, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    install(folder, "queen-client")
    prelude = "globalThis.processMessage = async ({ payload }) => console.log(JSON.stringify(payload))"
    (folder / "prelude.js").write_text(prelude)
    text = EXAMPLE.read_text().replace("http://localhost:3000", f"http://127.0.0.1:{server.port}")
    (folder / "example.js").write_text(text)
    with clock_moved_on_poll(server):
        shown = node("--import", "./prelude.js", "example.js", folder=folder)
    assert '{"to":"user@example.com","template":"welcome"}' in shown
    assert acked(server) == 1


@pytest.mark.browser
def test_the_example_runs_word_for_word_in_a_browser(server: MovableClockServer) -> None:
    program = find_browser()
    with pages() as (address, reports), clock_moved_on_poll(server):
        page = f"{address}/tests/examples/index.html?server=http://127.0.0.1:{server.port}"
        with browser(program, page):
            assert reports.get(timeout=PATIENCE_SECONDS) == {"payload": PAYLOAD, "error": None}
    assert acked(server) == 1
