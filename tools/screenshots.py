"""Makes the screenshots of the dashboard for the README and the docs, from a new server with some traffic.

`make screenshots` makes all of them. With file names as arguments, such as overview-dark.png, it makes only those.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Page, sync_playwright  # noqa: E402

from penstock.broker._sync.broker import Broker  # noqa: E402
from penstock.core.commands import SettleItem  # noqa: E402
from penstock.core.model import Content, PushItem, QueueOptions, system_clock  # noqa: E402
from penstock.store.sqlite import SqliteStore  # noqa: E402
from tests.integration.serving import Client, Running, running  # noqa: E402
from tools import provision  # noqa: E402

FOLDER = ROOT / "docs/images"
BYTES_MAX = 150_000
MINUTES = 61
PATIENCE_MS = 180_000
QUEUES = {
    "shop/orders/created": (90, 0.02),
    "shop/orders/paid": (70, 0.05),
    "shop/mail/receipt": (50, 0.12),
    "shop/mail/newsletter": (30, 0.01),
    "media/images/resize": (45, 0.08),
    "media/video/encode": (16, 0.3),
    "billing/invoices/render": (18, 0.18),
    "emails": (38, 0.05),
}
ERRORS = (
    "SMTPServerDisconnected: connection to 10.0.0.{} lost",
    "TimeoutError: upstream took {} ms",
    "KeyError: 'customer_{}'",
)
SHOTS = {
    "overview": "overview",
    "queues": "queues",
    "queue": "queue/shop%2Forders%2Fpaid?state=ready",
    "message": "message/shop%2Fmail%2Freceipt/{id}",
    "dead-letters": "dead/media%2Fvideo%2Fencode",
    "stream": "stream/clicks",
}
# The color schemes of each screen; the other screens are shown only in light. These two also get a narrow version.
SCHEMES = {"overview": ("light", "dark"), "queues": ("light", "dark")}


class SetClock:
    """A clock that the script sets."""

    def __init__(self) -> None:
        self.now = (system_clock() // 60_000 - MINUTES + 1) * 60_000

    def __call__(self) -> int:
        return self.now


def main() -> None:
    found = json.loads(provision.CHOICE.read_text()).get("browser")
    if found is None:
        sys.exit("no browser found; run `make provision`")
    FOLDER.mkdir(parents=True, exist_ok=True)
    dice = random.Random(7)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-screenshots-") as folder,
        populated_server(Path(folder), dice) as server,
        server.client() as client,
        sync_playwright() as playwright,
    ):
        streams(client, dice)
        dead = client.get("/queues/shop%2Fmail%2Freceipt/dlq?limit=1").json["messages"][0]["id"]
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found["path"], args=arguments)
        for scheme in ("light", "dark"):
            for width, height in ((1100, 630), (400, 760)):
                viewport: Any = {"width": width, "height": height}
                context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
                page = context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                for name, place in SHOTS.items():
                    narrow = width == 400
                    if scheme in SCHEMES.get(name, ("light",)) and (not narrow or name in SCHEMES):
                        picture = f"{name}-{scheme}{'-narrow' if narrow else ''}.png"
                        if sys.argv[1:] and picture not in sys.argv[1:]:
                            continue
                        shoot(page, server.port, place.format(id=dead), client, dice, picture)
                context.close()
        browser.close()


@contextmanager
def populated_server(folder: Path, dice: random.Random) -> Iterator[Running]:
    history(folder / "penstock.db", dice)
    with running(folder) as server:
        yield server


def history(path: Path, dice: random.Random) -> None:
    """Generate an hour of traffic within seconds."""
    clock = SetClock()
    broker = Broker(SqliteStore(path, clock=clock, durability="relaxed", journal=True), clock=clock)
    options = QueueOptions(max_attempts=2, backoff="fixed", backoff_ms=0)
    for queue in QUEUES:
        broker.configure(queue, create=options)
    for minute in range(MINUTES):
        swell = 1 + 0.5 * math.sin(minute / 7) + 0.2 * dice.random()
        # The current minute has only just begun.
        swell *= min(1.0, (system_clock() - clock.now) / 60_000)
        for queue, (rate, bad) in QUEUES.items():
            work(broker, clock, dice, queue, round(rate * swell), bad)
        broker.sweep()
        clock.now += 60_000 - (clock.now % 60_000)
    broker.close()


def work(broker: Broker, clock: SetClock, dice: random.Random, queue: str, count: int, bad: float) -> None:
    orders = [
        {
            "order": 9_007_199_254_740_993 + dice.randint(1, 10**6),
            "customer": dice.choice(["ada", "grace", "edsger"]),
            "total": round(dice.random() * 200, 2),
            "lines": [{"sku": f"A-{dice.randint(1, 500)}", "quantity": dice.randint(1, 3)}],
        }
        for _ in range(count)
    ]
    bodies = [json.dumps(order).encode() for order in orders]
    broker.push(queue, [PushItem(payload=b, content=Content.JSON, headers={"tenant": "acme"}) for b in bodies])
    clock.now += dice.randint(20, 900)
    leased = broker.lease(queue, limit=round(count * dice.uniform(0.85, 1.15)), worker=f"{queue.split('/')[-1]}-1")
    clock.now += dice.randint(30, 400)
    items = [SettleItem(each.id, each.token) for each in leased]
    failing = [item for item in items if dice.random() < bad]
    for item in failing:
        item.error = dice.choice(ERRORS).format(dice.randint(1, 250))
    broker.ack(queue, [item for item in items if item not in failing])
    broker.nack(queue, failing)
    clock.now += 50


def streams(client: Client, dice: random.Random) -> None:
    client.post("/streams", {"name": "clicks"})
    records = [{"page": f"/{dice.randint(1, 99)}", "ms": dice.randint(20, 900)} for _ in range(4_000)]
    client.post("/streams/clicks/records", {"records": records})
    for number, consumer in enumerate(("recommendations", "warehouse", "fraud")):
        client.ask("PUT", f"/streams/clicks/consumers/{consumer}", {"offset": 3_999 - number * 700})


def now(client: Client, dice: random.Random) -> None:
    """Push and ack a few messages, so that the screenshot shows live traffic."""
    for queue in QUEUES:
        path = f"/queues/{queue.replace('/', '%2F')}"
        bodies = [{"payload": {"order": dice.randint(1, 10**6)}} for _ in range(dice.randint(1, 4))]
        client.post(f"{path}/messages", {"messages": bodies})
        leased = client.post(f"{path}/poll?batch=3&wait_ms=0&worker={queue.split('/')[-1]}-1").json["messages"]
        if leased:
            items = [{"id": each["id"], "token": each["token"]} for each in leased]
            client.post(f"{path}/ack", {"items": items[: dice.choice((1, 2, 3))]})


def shoot(page: Page, port: int, place: str, client: Client, dice: random.Random, name: str) -> None:
    page.goto(f"http://127.0.0.1:{port}/#/{place}")
    page.wait_for_load_state("networkidle")
    page.locator("[data-state=live]:visible").first.wait_for()
    for _ in range(2):
        now(client, dice)
        page.wait_for_timeout(1_100)
    target = FOLDER / name
    page.screenshot(path=target)
    size = target.stat().st_size
    if size > BYTES_MAX:
        sys.exit(f"{target.name} has {size} bytes, more than {BYTES_MAX}")
    print(f"{target.relative_to(ROOT)} {size}")


if __name__ == "__main__":
    main()
