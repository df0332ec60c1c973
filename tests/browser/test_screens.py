"""Each screen shows the current state of the server, on both stores."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import expect

from penstock.pipeline.lake.lake import Lake
from tests.browser.conftest import Dashboard, Open
from tests.browser.traffic import ack, die, lease, push
from tests.integration.serving import Client, running


def test_the_overview_updates_its_counts_without_a_reload(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    push(client, queue, *range(5))
    page = dashboard.go()
    row = page.get_by_role("region", name="Busiest queues").get_by_role("row").filter(has_text=name)
    expect(row.locator("[data-cell=pending]")).to_have_text("5")
    ack(client, queue, 3)
    expect(row.locator("[data-cell=pending]")).to_have_text("2")
    expect(row.locator("[data-cell=completed]")).to_have_text("3")
    expect(page.get_by_label("Latest events").get_by_role("listitem").filter(has_text=name).first).to_be_visible()
    expect(page.locator(".chart canvas")).to_have_count(4)
    for span in ("5 min", "24 h", "30 d"):
        page.get_by_role("button", name=span, exact=True).click()
        expect(page.get_by_text(f"in {span}").first).to_be_visible()


def test_incoming_messages_are_shown_if_the_browsers_clock_is_ahead(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    dashboard.page.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000")
    page = dashboard.go()
    expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
    push(client, client.queue(name), *range(1_000))
    expect(dashboard.tile("in")).to_have_text(re.compile(r"^[1-9]"))


def test_the_queue_tree_filters_sorts_and_updates_live(dashboard: Dashboard, client: Client, name: str) -> None:
    paths = [client.queue(f"{name}-shop/orders/{leaf}", priority=n) for n, leaf in enumerate(("paid", "new"))]
    push(client, paths[1], 1, 2, 3)
    page = dashboard.go("queues")
    page.get_by_label("Filter queues").fill(f"{name}-shop")
    grid = page.get_by_role("treegrid")
    expect(grid.get_by_role("row")).to_have_count(5)
    rows = grid.get_by_role("row")
    expect(rows.nth(1)).to_contain_text(f"{name}-shop (2)")
    expect(rows.nth(1).locator("[data-cell=ready]")).to_have_text("3")
    expect(rows.nth(3)).to_contain_text("new")
    grid.get_by_role("button", name="Priority").click()
    push(client, paths[0], *range(7))
    expect(rows.nth(1).locator("[data-cell=ready]")).to_have_text("10")
    page.get_by_role("button", name=f"Close {name}-shop/", exact=True).click()
    expect(grid.get_by_role("row")).to_have_count(2)
    page.get_by_label("Filter queues").fill("no such queue")
    expect(page.get_by_text("No queue has that in its name")).to_be_visible()


def test_a_queue_with_an_age_alert_is_marked(dashboard: Dashboard, client: Client, name: str) -> None:
    for queue in (client.queue(f"{name}-late", max_age_alert_ms=1), client.queue(f"{name}-calm")):
        push(client, queue, 1)
    while not client.get(f"/queues/{name}-late/stats").json["age_alert"]:
        pass
    page = dashboard.go("queues")
    page.get_by_label("Filter queues").fill(name)
    late, calm = (page.get_by_role("row").filter(has_text=f"{name}-{each}") for each in ("late", "calm"))
    expect(late.get_by_text("old messages")).to_be_visible()
    expect(calm.get_by_text("old messages")).to_be_hidden()


def test_a_queue_shows_counts_messages_and_latencies(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    ids = push(client, queue, {"first": 1}, {"second": 2})
    lease(client, queue)
    page = dashboard.go(f"queue/{name}")
    expect(dashboard.tile("ready")).to_have_text("1")
    expect(dashboard.tile("leased")).to_have_text("1")
    table = page.get_by_role("region", name="Messages")
    expect(table.get_by_role("row").filter(has_text='"second"')).to_be_visible()
    page.get_by_role("button", name="leased", exact=True).click()
    expect(table.get_by_role("row").filter(has_text=str(ids[0]))).to_contain_text('"first"')
    push(client, queue, 3)
    expect(dashboard.tile("ready")).to_have_text("2")
    expect(page.get_by_text("wait p95")).to_be_visible()


def test_a_message_shows_its_history_exact_numbers_and_newest_errors_first(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    queue = client.queue(name, max_attempts=2, backoff="fixed", backoff_ms=0)
    big = 9007199254740993123
    (message,) = push(client, queue, {"big": big}, headers={"tenant": "acme"})
    for error in ("the first went wrong", "the second, too"):
        (leased,) = lease(client, queue)
        failed = {"error": error, "traceback": f"in send_mail\n{error}"}
        client.post(f"{queue}/nack", {"id": message, "token": leased["token"], **failed})
    page = dashboard.go(f"message/{name}/{message}")
    expect(page.locator("pre").first).to_contain_text(f'"big": {big}')
    expect(page.get_by_text("acme")).to_be_visible()
    errors = page.get_by_role("region", name="Errors").get_by_role("listitem")
    expect(errors.nth(0)).to_contain_text("the second, too")
    expect(page.get_by_text("in send_mail").first).not_to_be_visible()
    errors.nth(0).get_by_text("Traceback").click()
    expect(page.get_by_text("in send_mail").first).to_be_visible()
    life = page.get_by_label("History").get_by_role("listitem")
    expect(life).to_have_count(6)
    for n, word in enumerate(("Pushed", "Leased", "Failed", "Leased", "Failed", "Dead")):
        expect(life.nth(n)).to_contain_text(word)
    expect(life.nth(1)).to_contain_text("w1")
    dashboard.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_text("Copied: pushes this message again")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f'"big":{big}' in copied
    assert f"/queues/{name}/messages" in copied


def test_a_deleted_message_is_shown_from_the_journal(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    (message,) = push(client, queue, {"kept": "in the journal"})
    ack(client, queue)
    page = dashboard.go(f"message/{name}/{message}")
    expect(page.get_by_text(f"Message {message} is no longer in {name}")).to_be_visible()
    expect(page.get_by_label("History").get_by_role("listitem")).to_have_count(3)
    expect(page.locator("pre")).to_contain_text("in the journal")


def test_dead_letters_are_grouped_by_error(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    die(client, queue, "timeout after 12 ms", "timeout after 99 ms", "no such user 'ada'")
    page = dashboard.go("dead")
    page.get_by_role("link", name=name, exact=True).click()
    groups = page.get_by_role("region", name="Groups").get_by_role("row")
    expect(groups).to_have_count(3)
    expect(groups.nth(1)).to_contain_text(re.compile(r"timeout after \d+ ms2"))
    page.get_by_label("Errors that contain").fill("user")
    expect(groups).to_have_count(2)
    expect(page.get_by_text("1 dead letter of 3 in 1 group")).to_be_visible()


def test_a_stream_shows_segments_consumers_and_records_at_an_offset(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    assert client.post("/streams", {"name": name}).status == 201
    client.post(f"/streams/{name}/records", {"records": [{"n": n} for n in range(50)]})
    client.ask("PUT", f"/streams/{name}/consumers/reader", {"offset": 29})
    page = dashboard.go("streams")
    page.get_by_role("link", name=name, exact=True).click()
    expect(dashboard.tile("records")).to_have_text("50")
    consumer = page.get_by_role("region", name="Consumers").get_by_role("row").filter(has_text="reader")
    expect(consumer).to_contain_text("2920")
    page.get_by_label("From offset").fill("7")
    page.get_by_role("button", name="Go", exact=True).click()
    records = page.get_by_label("Records").get_by_role("listitem")
    expect(records.first).to_contain_text('{"n":7}')
    page.get_by_role("button", name="Later").click()
    expect(records.first).to_contain_text('{"n":27}')
    client.post(f"/streams/{name}/records", {"records": [1]})
    expect(dashboard.tile("records")).to_have_text("51")


def test_a_row_keeps_the_focus_while_its_numbers_change(dashboard: Dashboard, client: Client, name: str) -> None:
    client.post("/streams", {"name": name})
    page = dashboard.go("streams")
    row = page.get_by_role("row").filter(has_text=name)
    row.get_by_role("link").focus()
    for records in ("1", "2"):
        client.post(f"/streams/{name}/records", {"records": [1]})
        expect(row.get_by_role("cell").nth(1)).to_have_text(records)
    expect(row.get_by_role("link")).to_be_focused()


def test_the_pipeline_screen_shows_how_to_start_the_pipeline(dashboard: Dashboard) -> None:
    page = dashboard.go("pipeline")
    expect(page.get_by_text("There is no lake yet")).to_be_visible()
    expect(page.locator("code").filter(has_text="penstock pipeline run").first).to_be_visible()


def test_the_pipeline_screen_shows_each_table_of_the_lake(open_page: Open, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        lake = Lake(server.path.parent / "lake")
        lake.create()
        page = open_page(f"http://127.0.0.1:{server.port}/").go("pipeline")
        tables = page.get_by_role("region", name="Tables").get_by_role("row")
        expect(tables).to_have_count(len(lake.tables()) + 1)
        expect(tables.filter(has_text="gold.queue_minutes")).to_be_visible()
        expect(page.get_by_text("not running")).to_be_visible()


def test_the_pipeline_screen_fits_400_pixels_and_reports_only_errors(open_page: Open, tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        lake = Lake(server.path.parent / "lake")
        lake.create()
        log = server.path.parent / "lake" / "logs" / "spark.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text('2026-01-02T03:04:05,678 WARN Logging: Setting default log level to "ERROR".\n')
        client.ask("PUT", "/journal/consumers/" + "a-reader-with-a-long-name-" * 4, {"offset": 0})
        page = open_page(f"http://127.0.0.1:{server.port}/", viewport={"width": 400, "height": 800}).go("pipeline")
        expect(page.get_by_text("gold.queue_minutes").first).to_be_visible()
        too_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        shows_the_warning = "Setting default log level" in page.get_by_role("main").inner_text()
        assert (too_wide, shows_the_warning) == (False, False)
        log.write_text(log.read_text() + "2026-01-02T03:04:06,789 ERROR Task: " + "x" * 400 + "\n")
        page.reload()
        expect(page.get_by_text("Spark logged an error")).to_contain_text("Task: xxx")
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_charts_show_their_units(dashboard: Dashboard, client: Client, name: str) -> None:
    push(client, client.queue(name), 1)
    page = dashboard.go()
    for title, unit in (("Throughput", "messages/s"), ("Depth", "messages"), ("Wait", "time"), ("Service", "time")):
        expect(page.get_by_role("region", name=title).locator(".unit")).to_have_text(unit)
    page = dashboard.go(f"queue/{name}")
    expect(page.locator(".chart .unit").first).to_have_text("messages/s")


def test_rates_are_correct_as_soon_as_the_page_loads(open_page: Open, tmp_path: Path) -> None:
    """A rate over ten seconds would be far too low if the page has watched for only one of them."""
    with running(tmp_path) as server, server.client() as client:
        queue = client.queue("q")
        push(client, queue, *range(600))
        dashboard = open_page(f"http://127.0.0.1:{server.port}/")
        dashboard.page.clock.install()
        page = dashboard.go()
        tile = page.locator("[data-tile=in]")
        expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
        push(client, queue, 1)
        expect(page.get_by_label("Latest events")).to_contain_text("pushed")
        rate, label = re.findall(r"([\d.,]+)/s\s+(.+)", tile.inner_text())[0]
        assert (float(rate) >= 600 / 120, label) == (True, "last minute"), rate
        page.clock.fast_forward(10_000)  # After ten seconds the page has enough data of its own.
        expect(tile).to_contain_text("over 10 s")


def test_workers_are_shown_with_their_leases(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    push(client, queue, 1, 2, 3)
    lease(client, queue, 2, worker=f"worker-{name}")
    page = dashboard.go("workers")
    consumer = page.get_by_role("region", name="Consumers").get_by_role("row").filter(has_text=f"worker-{name}")
    expect(consumer.get_by_role("link", name=name, exact=True)).to_be_visible()
    expect(consumer.get_by_role("cell").nth(3)).to_have_text("2")
    expect(consumer.get_by_role("cell").last).to_contain_text("ago")
    expect(page.get_by_role("table").last.get_by_role("row")).to_have_count(2)
    lease(client, queue, 1, worker=f"worker-{name}")
    expect(consumer.get_by_role("cell").nth(3)).to_have_text("3")


def test_search_finds_a_queue_by_part_of_its_name(dashboard: Dashboard, client: Client, name: str) -> None:
    client.queue(f"{name}/deep/inside")
    page = dashboard.go()
    page.keyboard.press("/")
    page.keyboard.type(f"{name}/dee")
    expect(page.get_by_role("option").first).to_contain_text(f"{name}/deep/inside")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("inside")
    assert page.url.endswith(f"#/queue/{quote(f'{name}/deep/inside', safe='')}")


def test_keyboard_shortcuts_reach_every_screen_and_are_listed(dashboard: Dashboard) -> None:
    page = dashboard.go()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
