"""Every screen escapes markup, is accessible, and follows live data."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from penstock.core.model import QueueOptions
from tests.browser.conftest import Dashboard, Open
from tests.browser.proxy import below
from tests.browser.traffic import ack, die, lease, push
from tests.integration.serving import Client, Running, running

MARKUP = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>&lt;b&gt;'
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
# Each screen, with a selector that matches once it is rendered.
PLACES = {
    "overview": ".chart canvas",
    "overview?span=5m": ".chart canvas",
    "queues": ".vrow",
    "queue/{busy}": "td.rest",
    "queue/{busy}?state=dead": "td.rest",
    "queue/{busy}?tab=options": "input[name=max_attempts]",
    "message/{busy}/{message}": ".timeline li",
    "dead": "tbody tr",
    "dead/{busy}": "tbody tr",
    "streams": "tbody tr",
    "stream/{stream}": ".stream-list time",
    "workers": "tbody tr",
    "pipeline": ".empty",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run one server: these tests do not depend on the store."""
    with running(tmp_path_factory.mktemp("manners")) as server, server.client() as client:
        queue = client.queue("shop/orders/paid", max_attempts=1)
        push(client, queue, *({"order": n} for n in range(20)))
        ack(client, queue, 5)
        die(client, queue, *[f"timeout after {n} ms" for n in range(14)])
        lease(client, queue, 1)
        client.post("/streams", {"name": "clicks"})
        client.post("/streams/clicks/records", {"records": [{"page": "/"}] * 30})
        client.ask("PUT", "/streams/clicks/consumers/reader", {"offset": 3})
        yield server


@pytest.fixture
def places(client: Client) -> dict[str, str]:
    message = client.get("/queues/shop%2Forders%2Fpaid/dlq?limit=1").json["messages"][0]["id"]
    busy = quote("shop/orders/paid", safe="")
    return {place.format(busy=busy, message=message, stream="clicks"): sign for place, sign in PLACES.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_no_serious_violation_on_any_screen(
    scheme: str, open_page: Open, server: Running, places: dict[str, str]
) -> None:
    dashboard = open_page(f"http://127.0.0.1:{server.port}/", color_scheme=scheme, reduced_motion="reduce")
    dashboard.go().evaluate(AXE)
    # The dark scheme changes only colours.
    rules = "['color-contrast']" if scheme == "dark" else "undefined"
    found = {}
    for place, sign in places.items():
        page = dashboard.go(place)
        expect(page.locator(sign).first).to_be_visible()
        report = page.evaluate(f"axe.run({{resultTypes: ['violations'], runOnly: {rules}}})")
        found[place] = [
            (each["id"], each["nodes"][0]["html"][:160], each["nodes"][0].get("failureSummary", "")[:200])
            for each in report["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    assert not {place: what for place, what in found.items() if what}


def test_every_screen_fits_400_pixels(open_page: Open, server: Running, places: dict[str, str]) -> None:
    dashboard = open_page(f"http://127.0.0.1:{server.port}/", viewport={"width": 400, "height": 800})
    too_wide = []
    for place, sign in places.items():
        page = dashboard.go(place)
        expect(page.locator(sign).first).to_be_visible()
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            too_wide.append(place)
    assert not too_wide
    dashboard.page.get_by_role("link", name="Queues").click()
    expect(dashboard.page.get_by_role("heading", level=1)).to_have_text("Queues")


def test_markup_in_bodies_headers_errors_and_keys_is_shown_as_text(dashboard: Dashboard, client: Client) -> None:
    queue = client.queue("markup", max_attempts=1)
    (message,) = push(client, queue, {MARKUP: MARKUP}, headers={"x": MARKUP}, idempotency_key=MARKUP)
    (leased,) = lease(client, queue, worker=quote(MARKUP))
    client.post(f"{queue}/nack", {"id": message, "token": leased["token"], "error": MARKUP})
    push(client, queue, MARKUP)
    client.post("/streams", {"name": "marked"})
    client.post("/streams/marked/records", {"records": [MARKUP, {"a": MARKUP}]})
    for place in (
        f"message/markup/{message}",
        "dead/markup",
        "queue/markup",
        "queue/markup?state=dead",
        "stream/marked",
    ):
        page = dashboard.go(place)
        expect(page.get_by_text("onerror=").first).to_be_visible()
    page.goto(f"{dashboard.base}#/queue/{quote(MARKUP, safe='')}")
    expect(page.get_by_role("main")).to_contain_text("<img src=x")
    page.goto(f"{dashboard.base}#/queues?filter={quote(MARKUP, safe='')}")
    expect(page.get_by_text("No queue has that in its name")).to_be_visible()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img[src=x]").count() == 0
    dashboard.errors = [text for text in dashboard.errors if "404" not in text and "422" not in text]


def test_pausing_freezes_the_page_and_resuming_updates_it(dashboard: Dashboard, client: Client) -> None:
    queue = client.queue("frozen")
    push(client, queue, 1)
    page = dashboard.go("queue/frozen")
    expect(dashboard.tile("ready")).to_have_text("1")
    expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
    page.keyboard.press("p")
    expect(page.locator("aside .live")).to_have_attribute("data-state", "paused")
    push(client, queue, 2, 3)
    other = page.context.new_page()
    other.goto(f"{dashboard.base}#/queue/frozen")
    expect(other.locator("[data-tile=ready] dd").first).to_have_text("3")
    expect(dashboard.tile("ready")).to_have_text("1")
    page.keyboard.press("p")
    expect(dashboard.tile("ready")).to_have_text("3")


def test_a_page_reconnects_when_its_server_is_back(open_page: Open, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        port = server.port
        with server.client() as client:
            push(client, client.queue("emails"), 1)
        dashboard = open_page(f"http://127.0.0.1:{port}/")
        page = dashboard.go("queues")
        row = page.get_by_role("row").filter(has_text="emails").locator("[data-cell=ready]")
        expect(row).to_have_text("1")
        expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
    expect(page.locator("aside .live")).to_have_attribute("data-state", "away")
    with running(tmp_path, port=port) as server:
        with server.client() as client:
            push(client, "/queues/emails", 2)
        expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
        expect(row).to_have_text("2")
        with server.client() as client:
            push(client, "/queues/emails", 3)
        expect(row).to_have_text("3")


def test_the_dashboard_works_below_a_path_prefix(open_page: Open, server: Running) -> None:
    with below("/tools/penstock", server.port) as port:
        dashboard = open_page(f"http://127.0.0.1:{port}/tools/penstock/")
        page = dashboard.go()
        expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
        page.keyboard.press("g")
        page.keyboard.press("q")
        expect(page.get_by_role("row").filter(has_text="paid")).to_be_visible()
        dashboard.check_page()
        page.close()


def test_ten_thousand_queues_are_listed_and_searched_without_rendering_all(open_page: Open, tmp_path: Path) -> None:
    with running(tmp_path) as server:

        async def make() -> None:
            for ns in range(10):
                names = (f"ns{ns}/task{n % 10}/queue{n:04}" for n in range(1_000))
                await asyncio.gather(*(server.app.broker.configure(name, create=QueueOptions()) for name in names))

        asyncio.run_coroutine_threadsafe(make(), server.loop).result()
        dashboard = open_page(f"http://127.0.0.1:{server.port}/")
        page = dashboard.go("queues")
        expect(page.get_by_text("10,000 queues")).to_be_visible()
        page.get_by_label("Filter queues").fill("queue0")
        expect(page.get_by_text("10,000 of 10,000 queues")).to_be_visible()
        page.get_by_label("Filter queues").fill("ns7/task3/queue0993")
        expect(page.get_by_role("row").filter(has_text="queue0993")).to_be_visible()
        page.get_by_label("Filter queues").fill("ns")
        page.get_by_role("treegrid").evaluate("list => list.scrollTop = list.scrollHeight")
        expect(page.get_by_role("row").filter(has_text="queue0999")).to_be_visible()
        assert page.locator(".vrow").count() < 100
        dashboard.check_page()


def test_empty_states_show_the_next_command(open_page: Open, tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        # The server's own queue must not count as the user's.
        client.queue("penstock.canary")
        dashboard = open_page(f"http://127.0.0.1:{server.port}/")
        commands = {
            "overview": "penstock queue create emails",
            "queues": "penstock queue create emails",
            "streams": "penstock stream create clicks",
            "pipeline": "penstock pipeline run",
        }
        for place, command in commands.items():
            page = dashboard.go(place)
            expect(page.locator(".empty code").filter(has_text=command).first).to_be_visible()
        expect(dashboard.go("dead").get_by_text("No dead letters")).to_be_visible()
        expect(dashboard.go("queue/nowhere").get_by_text("There is no queue nowhere")).to_be_visible()
