"""`penstock dlq …`: dead letters."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.backend import Backend, Data
from penstock.cli.common import YES, Leases, QueueOption, on_queues
from penstock.cli.messages import show_messages
from penstock.cli.output import Output, confirm

OF_QUEUE = click.option("--queue", cls=QueueOption, required=True, help="Queue that the dead letters come from.")


@click.group("dlq")
def command() -> None:
    """List, requeue and purge dead letters."""


@command.command("list")
@OF_QUEUE
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@on_queues()
def list_dead(backend: Backend, out: Output, queue: str, limit: int) -> None:
    """List dead letters, newest first, with their last error. JSON: {"messages": [...]}, each with all `errors`."""
    show_messages(out, backend.peek(queue, state="dead", limit=limit), empty=f"{queue} has no dead letters")


@command.command("purge")
@OF_QUEUE
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@YES
@on_queues()
def purge(backend: Backend, out: Output, queue: str, dry_run: bool, yes: bool) -> None:
    """Delete all dead letters. JSON: {"purged", "dry_run"}"""
    if not dry_run:
        confirm(f"Delete every dead letter of {queue}?", yes)
    show_purged(out, backend.purge(queue, dead=True, dry_run=dry_run))


def show_purged(out: Output, purged: Data) -> None:
    heading = "would purge" if purged["dry_run"] else "purged"
    out.show(purged, lambda: out.fields({heading: purged["purged"]}))


def requeue(name: str, queue_flag: str) -> click.Command:
    """Build the command under one of its two names."""

    @click.command(name)
    @click.option(queue_flag, "queue", cls=QueueOption, required=True, help="Queue that the dead letters come from.")
    @click.option("--ids", type=Leases(tokens=False), help="Only these messages.")
    @click.option("--error-contains", help="Only messages whose last error contains this text.")
    @click.option("--older-than-ms", type=click.IntRange(0), help="Only messages dead-lettered longer ago.")
    @click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), help="Most messages per second.")
    @click.option("--dry-run", is_flag=True, help="Only count the messages.")
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
        """Move dead letters back into their queue. JSON: {"matched", "moved", "skipped"}"""
        where = {key: value for key, value in given.items() if value is not None}
        if ids is not None:
            where["ids"] = [each["id"] for each in ids]
        done = backend.requeue(queue, where=where, rate_per_s=rate, dry_run=dry_run)
        out.show(done, lambda: out.fields(done))

    return requeue_dead


command.add_command(requeue("requeue", "--queue"))
