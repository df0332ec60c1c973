"""`penstock dlq …`: dead letters."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.backend import Backend, Data
from penstock.cli.common import YES, Leases, QueueOption, on_queues
from penstock.cli.messages import show_messages
from penstock.cli.output import Output, confirm

OF_QUEUE = click.option("--queue", cls=QueueOption, required=True, help="The queue whose dead letters these are.")


@click.group("dlq")
def command() -> None:
    """Look at, requeue and purge dead letters."""


@command.command("list")
@OF_QUEUE
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@on_queues()
def list_dead(backend: Backend, out: Output, queue: str, limit: int) -> None:
    """Dead letters, newest first, with their last error. JSON: {"messages": [...]}, each with all its `errors`."""
    show_messages(out, backend.peek(queue, state="dead", limit=limit), empty=f"{queue} has no dead letters")


@command.command("purge")
@OF_QUEUE
@click.option("--dry-run", is_flag=True, help="Only count.")
@YES
@on_queues()
def purge(backend: Backend, out: Output, queue: str, dry_run: bool, yes: bool) -> None:
    """Remove all dead letters. JSON: {"purged", "dry_run"}"""
    if not dry_run:
        confirm(f"Remove every dead letter of {queue}?", yes)
    show_purged(out, backend.purge(queue, dead=True, dry_run=dry_run))


def show_purged(out: Output, purged: Data) -> None:
    heading = "would purge" if purged["dry_run"] else "purged"
    out.show(purged, lambda: out.fields({heading: purged["purged"]}))


def requeue(name: str, queue_flag: str) -> click.Command:
    """The same command under both of its names."""

    @click.command(name)
    @click.option(queue_flag, "queue", cls=QueueOption, required=True, help="The queue whose dead letters these are.")
    @click.option("--ids", type=Leases(tokens=False), help="Only these.")
    @click.option("--error-contains", help="Only those whose last error has this text.")
    @click.option("--older-than-ms", type=click.IntRange(0), help="Only those dead for longer.")
    @click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), help="At most so many a second.")
    @click.option("--dry-run", is_flag=True, help="Only count.")
    @on_queues()
    def requeue_dead(
        backend: Backend,
        out: Output,
        queue: str,
        ids: list[Data] | None,
        rate: float | None,
        dry_run: bool,
        **given: Any,
    ) -> None:
        """Give dead letters a new life in their queue. JSON: {"matched", "moved", "skipped"}"""
        where = {key: value for key, value in given.items() if value is not None}
        if ids is not None:
            where["ids"] = [each["id"] for each in ids]
        done = backend.requeue(queue, where=where, rate_per_s=rate, dry_run=dry_run)
        out.show(done, lambda: out.fields(done))

    return requeue_dead


command.add_command(requeue("requeue", "--queue"))
