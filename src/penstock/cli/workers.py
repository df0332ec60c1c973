"""`penstock workers`: servers and consumers, with the leases they hold."""

from __future__ import annotations

from urllib.parse import quote

import click

from penstock.cli.common import PAGE, call, every, on_queues
from penstock.cli.output import Data, Output, plain, when
from penstock.client._sync.client import Client
from penstock.client.types import Page
from penstock.store.workers import cursor
from penstock.wire.workers import worker_view

HEADINGS = ("KIND", "NAME", "WHERE", "LEASES", "QUEUES", "SINCE", "LAST SEEN")


@click.command("workers")
@on_queues()
def command(client: Client, out: Output) -> None:
    """List servers and named consumers, with the leases they hold. JSON: {"workers": [...]}"""
    found = list(every(lambda after: _page(client, after)))
    rows = [
        (
            each["kind"],
            each["name"],
            each["server"] or (each["host"] and f"{each['host']}:{each['pid']}"),
            each["leases"],
            " ".join(f"{of['queue']}={of['leases']}" if of["leases"] else of["queue"] for of in each["queues"]) or None,
            when(each["started_at"]),
            when(each["seen_at"]),
        )
        for each in found
    ]
    out.show({"workers": found}, lambda: out.table(HEADINGS, rows, empty="there are no workers"))


def _page(client: Client, after: str | None) -> Page[Data]:
    transport = client.transport
    if transport.kind == "server":
        query = f"?limit={PAGE}" + ("" if after is None else f"&after={quote(after, safe='')}")
        page = call(transport.session, "GET", f"/workers{query}")
        return Page(page["workers"], page["next"])
    found = transport.broker.workers(after=after, limit=PAGE)
    return Page([plain(worker_view(each)) for each in found], cursor(found[-1]) if len(found) == PAGE else None)
