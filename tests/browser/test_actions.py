"""The actions of each screen work on both stores, and a read-only user does not get them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Dashboard, Open
from tests.browser.traffic import die, push
from tests.integration.serving import Client, running


def test_a_queue_is_created_paused_and_resumed(dashboard: Dashboard, client: Client, name: str) -> None:
    page = dashboard.go("queues")
    page.get_by_role("button", name="New queue").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text(f"{name} is paused")).to_be_visible()
    assert client.get(f"/queues/{name}").json["paused"]
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    assert not client.get(f"/queues/{name}").json["paused"]


def test_a_pushed_message_keeps_exact_numbers(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    page = dashboard.go(f"queue/{name}")
    page.get_by_role("button", name="Push a message").click()
    body = page.get_by_label("Body, as JSON")
    body.fill("{not json")
    expect(page.get_by_role("button", name="Push", exact=True)).to_be_disabled()
    body.fill('{"id": 12345678901234567890}')
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Message")
    assert client.get(f"{queue}/peek").json["messages"][0]["payload"] == {"id": 12345678901234567890}


def test_invalid_options_are_refused_and_valid_ones_saved(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    page = dashboard.go(f"queue/{name}?tab=options")
    attempts = page.locator("input[name=max_attempts]")
    attempts.fill("0")
    expect(page.get_by_text("At least 1")).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    attempts.fill("7")
    page.locator("input[name=max_in_flight]").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    options = client.get(queue).json["options"]
    names = page.locator("form[aria-label=Options] [name]").evaluate_all("found => found.map((each) => each.name)")
    assert names == list(options)
    assert (options["max_attempts"], options["max_in_flight"], options["ttl_ms"]) == (7, 3, None)


def test_an_export_contains_every_message(dashboard: Dashboard, client: Client, name: str, tmp_path: Path) -> None:
    queue = client.queue(name)
    push(client, queue, *({"n": n} for n in range(10)))
    page = dashboard.go(f"queue/{name}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "export")
    lines = [json.loads(line) for line in (tmp_path / "export").read_text().splitlines()]
    assert [line["payload"]["n"] for line in lines] == list(range(10))


def test_a_purge_requires_typing_the_queues_name(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    push(client, queue, 1, 2, 3)
    page = dashboard.go(f"queue/{name}")
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 messages")
    expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
    dialog.get_by_role("textbox").fill(name)
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog).to_have_count(0)
    assert client.get(queue).json["ready"] == 0


def test_a_deletion_requires_typing_the_queues_name(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name)
    page = dashboard.go(f"queue/{name}")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert client.get(queue).status == 404


def test_selected_dead_letters_are_redriven_after_a_dry_run_and_later_ones_stay(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    queue = client.queue(name, max_attempts=1)
    die(client, queue, "timeout 1", "timeout 2", "refused")
    page = dashboard.go(f"dead/{name}")
    page.get_by_label("Choose: timeout").check()
    die(client, queue, "timeout 3")
    page.get_by_role("button", name="Redrive 2 chosen…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"2 messages would move back to {name}")
    dialog.get_by_label("Messages a second").fill("100")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text(f"2 of 2 moved back to {name}")).to_be_visible()
    counts = client.get(f"{queue}/stats").json
    assert (counts["ready"], counts["dead"]) == (2, 2)


def test_redriving_all_matches_leaves_other_and_later_dead_letters(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    queue = client.queue(name, max_attempts=1)
    die(client, queue, "timeout 1", "timeout 2", "refused")
    page = dashboard.go(f"dead/{name}")
    page.get_by_label("Errors that contain").fill("timeout")
    page.get_by_role("button", name="Redrive all 2 that match…").click()
    die(client, queue, "timeout while it was asked")
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("2 of 2 moved back")).to_be_visible()
    counts = client.get(f"{queue}/stats").json
    assert (counts["ready"], counts["dead"]) == (2, 2)


def test_dead_letters_beyond_the_newest_thousands_are_counted_and_redriven(
    dashboard: Dashboard, client: Client, name: str
) -> None:
    queue = client.queue(name, max_attempts=1)
    die(client, queue, *(f"old {n}" for n in range(7)))
    for _ in range(3):
        die(client, queue, *(f"new {n}" for n in range(2_000)))
    page = dashboard.go(f"dead/{name}?contains=old")
    expect(page.get_by_text("7 dead letters of 6,007 in 1 group")).to_be_visible()
    page.get_by_role("button", name="Redrive all 7 that match…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"7 messages would move back to {name}")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text(f"7 of 7 moved back to {name}")).to_be_visible()
    page = dashboard.go(f"dead/{name}")
    page.get_by_label("Choose: new").check()
    expect(page.get_by_role("button", name="Redrive 6,000 chosen…")).to_be_visible()


def test_purging_dead_letters_requires_typing_the_queues_name(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    die(client, queue, "a", "b")
    page = dashboard.go(f"dead/{name}")
    page.get_by_role("button", name="Purge all…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(name + "x")
    expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
    dialog.get_by_role("textbox").fill(name)
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_text(f"No dead letters in {name}")).to_be_visible()
    assert client.get(queue).json["dead"] == 0


def test_a_single_dead_letter_is_redriven(dashboard: Dashboard, client: Client, name: str) -> None:
    queue = client.queue(name, max_attempts=1)
    (message,) = die(client, queue, "bad luck")
    page = dashboard.go(f"message/{name}/{message}")
    page.get_by_role("button", name="Redrive").click()
    expect(page.get_by_label("History").get_by_role("listitem").last).to_contain_text("Redriven")
    assert client.get(queue).json["ready"] == 1


def test_a_stream_is_created_and_deleted(dashboard: Dashboard, client: Client, name: str) -> None:
    page = dashboard.go("streams")
    page.get_by_role("button", name="New stream").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    assert client.get(f"/streams/{name}").status == 404


@pytest.mark.parametrize("role", ["admin", "reader"])
def test_a_server_with_tokens_requires_a_login_and_a_reader_is_read_only(
    role: str, open_page: Open, tmp_path: Path
) -> None:
    tokens = {"admin": "the-admin-token", "reader": "the-reading-token"}
    with running(tmp_path, auth_token=tokens["admin"], read_token=tokens["reader"]) as server:
        with server.client() as client:
            push(client, client.queue("emails"), {"to": "ada"})
        dashboard = open_page(f"http://127.0.0.1:{server.port}/")
        page = dashboard.go("queue/emails")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Penstock")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("invalid token")
        page.get_by_label("Token").fill(tokens[role])
        page.get_by_role("button", name="Sign in").click()
        expect(dashboard.tile("ready")).to_have_text("1")
        expect(page.locator("aside .live")).to_have_attribute("data-state", "live")
        expect(page.get_by_role("region", name="Messages").get_by_role("row").filter(has_text="ada")).to_be_visible()
        expect(page.get_by_role("button", name="Push a message")).to_have_count(1 if role == "admin" else 0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        dashboard.check_page(errors=False)
