"""`penstock stats`"""

from __future__ import annotations

import click

from penstock.cli.common import PAGE, QueueOption, every, on_queues
from penstock.cli.output import Data, Output, plain
from penstock.client._sync.client import Client

COUNTS = ("ready", "scheduled", "leased", "dead", "archived")


@click.command("stats")
@click.option("--queue", cls=QueueOption, help="Queue name.  [default: all queues]")
@on_queues()
def command(client: Client, out: Output, queue: str | None) -> None:
    """Show counts, ages and rates. JSON: the queue's stats, or {"queues": [...]}."""
    if queue is not None:
        stats = plain(client.queue(queue).stats())
        out.show(stats, lambda: show_stats(out, stats))
        return
    queues = every(lambda after: client.queues(limit=PAGE, after=after))
    found = [plain(client.queue(each.name).stats()) for each in queues]
    headings = ("QUEUE", *(name.upper() for name in COUNTS), "HEAD MS", "OLDEST MS", "IN/S 1M", "DONE/S 1M", "ERRORS")
    rows = [
        (
            each["queue"],
            *(each[name] for name in COUNTS),
            each["head_age_ms"],
            each["oldest_age_ms"],
            round(each["rates"]["1m"].get("pushed", 0), 2),
            round(each["rates"]["1m"].get("acked", 0), 2),
            f"{each['error_rate']:.1%}",
        )
        for each in found
    ]
    out.show({"queues": found}, lambda: out.table(headings, rows, empty="there are no queues"))


def show_stats(out: Output, stats: Data) -> None:
    # `dlq` is another name for `dead`.
    shown: Data = {name: value for name, value in stats.items() if name != "dlq" and not isinstance(value, dict)}
    shown["error_rate"] = f"{stats['error_rate']:.1%}"
    for name, percentiles in stats["latency"].items():
        shown[name] = "  ".join(f"{point} {'-' if value is None else value}" for point, value in percentiles.items())
    out.fields(shown)
    happened = list(stats["rates"].get("1m", {}))
    rows = [(span, *(round(rates[what], 2) for what in happened)) for span, rates in stats["rates"].items()]
    out.table(("PER SECOND", *(what.upper() for what in happened)), rows, empty="no rates yet")
