"""`penstock workers`: servers and consumers, with the leases they hold."""

from __future__ import annotations

import click

from penstock.cli.backend import Backend
from penstock.cli.common import on_queues
from penstock.cli.output import Output, when

HEADINGS = ("KIND", "NAME", "WHERE", "LEASES", "QUEUES", "SINCE", "LAST SEEN")


@click.command("workers")
@on_queues()
def command(backend: Backend, out: Output) -> None:
    """List servers and named consumers, with the leases they hold. JSON: {"workers": [...]}"""
    found = list(backend.workers())
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
