"""`penstock dlq …`: dead letters."""

from __future__ import annotations

import click

from penstock.cli.common import LONG_SECONDS, YES, Leases, QueueOption, on_queues
from penstock.cli.messages import peek_messages, show_messages
from penstock.cli.output import Data, Output, confirm
from penstock.client._sync.client import Client
from penstock.core.model import State

OF_QUEUE = click.option("--queue", cls=QueueOption, required=True, help="Queue that the dead letters come from.")


@click.group("dlq")
def command() -> None:
    """List, requeue and purge dead letters."""


@command.command("list")
@OF_QUEUE
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@on_queues()
def list_dead(client: Client, out: Output, queue: str, limit: int) -> None:
    """List dead letters, newest first, with their last error. JSON: {"messages": [...]}, each with all `errors`."""
    show_messages(out, peek_messages(client, queue, "dead", limit), empty=f"{queue} has no dead letters")


@command.command("purge")
@OF_QUEUE
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@YES
@on_queues(timeout=LONG_SECONDS)
def purge(client: Client, out: Output, queue: str, dry_run: bool, yes: bool) -> None:
    """Delete all dead letters. JSON: {"purged", "dry_run"}"""
    if not dry_run:
        confirm(f"Delete every dead letter of {queue}?", yes)
    purge_messages(client, out, queue, dead=True, dry_run=dry_run)


def purge_messages(client: Client, out: Output, name: str, *, dead: bool, dry_run: bool) -> None:
    if dry_run:
        stats = client.queue(name).stats()
        # The name of a dead-letter queue stands for the dead letters only.
        states = [State.DEAD] if dead or stats.queue != name else [State.READY, State.SCHEDULED]
        count = sum(getattr(stats, state) for state in states)
    else:
        count = client.transport.purge(name, dead)
    heading = "would purge" if dry_run else "purged"
    out.show({"purged": count, "dry_run": dry_run}, lambda: out.fields({heading: count}))


def requeue(name: str, queue_flag: str) -> click.Command:
    """Build the command under one of its two names."""

    @click.command(name)
    @click.option(queue_flag, "queue", cls=QueueOption, required=True, help="Queue that the dead letters come from.")
    @click.option("--ids", type=Leases(tokens=False), help="Only these messages.")
    @click.option("--error-contains", help="Only messages whose last error contains this text.")
    @click.option("--older-than-ms", type=click.IntRange(0), help="Only messages dead-lettered longer ago.")
    @click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), help="Most messages per second.")
    @click.option("--dry-run", is_flag=True, help="Only count the messages.")
    @on_queues(timeout=LONG_SECONDS)
    def requeue_dead(
        client: Client,
        out: Output,
        queue: str,
        ids: list[Data] | None,
        error_contains: str | None,
        older_than_ms: int | None,
        rate: float | None,
        dry_run: bool,
    ) -> None:
        """Move dead letters back into their queue. JSON: {"matched", "moved", "skipped"}"""
        redriven = client.transport.redrive(
            queue,
            ids=None if ids is None else [each["id"] for each in ids],
            error_contains=error_contains,
            older_than_ms=older_than_ms,
            rate_per_s=rate,
            dry_run=dry_run,
        )
        done = {"matched": redriven.matched, "moved": redriven.moved, "skipped": redriven.skipped}
        out.show(done, lambda: out.fields(done))

    return requeue_dead


command.add_command(requeue("requeue", "--queue"))
