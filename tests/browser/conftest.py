"""Runs a real browser against a real server; fails if a page logs an error or contacts another host."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.integration.conftest import serving_from
from tests.integration.javascript import find_browser
from tests.integration.serving import Client, Running

TIMEOUT_MS = 45_000
STORES = ["sqlite", "postgres"]
_numbers = itertools.count(1)
expect.set_options(timeout=TIMEOUT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in Path(item.path).parts:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # The browser lives for one module only, because Playwright's running event loop breaks tests that start their own.
    program = find_browser()
    with sync_playwright() as playwright:
        arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("dashboard")) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    """Return a unique queue name."""
    return f"q{next(_numbers)}"


class Dashboard:
    """A page of one server that records console errors and requests."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url.replace("ws", "http", 1)))

    def go(self, place: str = "") -> Page:
        # Changing only the part after # does not reload the page.
        self.page.goto(f"{self.base}#/{place}")
        expect(self.page.locator("h1")).to_be_visible()
        return self.page

    def tile(self, name: str) -> Any:
        return self.page.locator(f"[data-tile={name}] dd").first

    def check_page(self, *, errors: bool = True) -> None:
        foreign_urls = [url for url in self.requests if not url.startswith((self.base, "blob:"))]
        assert not foreign_urls
        if errors:
            assert not self.errors


Open = Callable[..., Dashboard]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a function that opens a dashboard in a new browser context."""
    contexts: list[BrowserContext] = []
    opened: list[Dashboard] = []

    def start(base: str, **options: Any) -> Dashboard:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        opened.append(Dashboard(context.new_page(), base))
        return opened[-1]

    yield start
    for context in contexts:
        context.close()


@pytest.fixture
def dashboard(open_page: Open, server: Running) -> Iterator[Dashboard]:
    dashboard = open_page(f"http://127.0.0.1:{server.port}/")
    yield dashboard
    dashboard.check_page()
