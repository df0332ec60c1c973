"""`penstock queue …`"""

from __future__ import annotations

import click

from penstock.cli.backend import Backend
from penstock.cli.common import NAME, YES, on_queues
from penstock.cli.dlq import requeue, show_purged
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.messages import show_messages, show_queue
from penstock.cli.output import Output, confirm
from penstock.cli.stats import show_stats

LAZY = {
    "create": ("penstock.cli.queue_create:create", "Create a queue."),
    "update": ("penstock.cli.queue_create:update", "Change a queue's options."),
}
ALIASES = {"add": "create", "set": "update", "rm": "delete"}


@click.group("queue", cls=LazyGroup, lazy=LAZY, aliases=ALIASES)
def command() -> None:
    """Create, list, change and delete queues."""


@command.command("list")
@click.option("--prefix", default="", help="Only queues whose name starts with this.")
@on_queues()
def list_queues(backend: Backend, out: Output, prefix: str) -> None:
    """List queues. JSON: {"queues": [...]}, each as in `queue show`, without stats."""
    queues = list(backend.list_queues(prefix))
    headings = ("NAME", "READY", "SCHEDULED", "LEASED", "DEAD", "VISIBILITY MS", "MAX ATTEMPTS", "PAUSED")
    rows = [
        tuple(
            queue[field]
            for field in ("name", "ready", "scheduled", "leased", "dead", "visibility_ms", "max_attempts", "paused")
        )
        for queue in queues
    ]
    out.show({"queues": queues}, lambda: out.table(headings, rows, empty="there are no queues"))


@command.command("delete")
@NAME
@click.option("--force", is_flag=True, help="Delete the queue even if it holds messages.")
@YES
@on_queues()
def delete(backend: Backend, out: Output, name: str, force: bool, yes: bool) -> None:
    """Delete a queue; if it holds messages, only with --force. JSON: {"dropped", "messages"}"""
    confirm(f"Delete the queue {name}{' and all its messages' if force else ''}?", yes)
    dropped = backend.drop_queue(name, force=force)
    out.show(dropped, lambda: out.fields(dropped))


@command.command("show")
@NAME
@on_queues()
def show(backend: Backend, out: Output, name: str) -> None:
    """Show a queue's options, counts and rates. JSON: the queue, with `options`, `totals` and `stats`."""
    stats = backend.stats(name)
    queue = backend.show_queue(name)

    def draw() -> None:
        show_queue(out, queue)
        show_stats(out, stats)

    out.show({**queue, "stats": stats}, draw)


@command.command("purge")
@NAME
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@YES
@on_queues()
def purge(backend: Backend, out: Output, name: str, dry_run: bool, yes: bool) -> None:
    """Delete all ready and scheduled messages; leased and dead ones stay. JSON: {"purged", "dry_run"}"""
    if not dry_run:
        confirm(f"Remove every waiting message of {name}?", yes)
    show_purged(out, backend.purge(name, dead=False, dry_run=dry_run))


@command.command("peek")
@NAME
@click.option("--limit", type=click.IntRange(1, 100_000), default=10, show_default=True)
@click.option(
    "--state",
    type=click.Choice(["ready", "scheduled", "leased", "dead", "archived"]),
    default="ready",
    show_default=True,
)
@on_queues()
def peek(backend: Backend, out: Output, name: str, limit: int, state: str) -> None:
    """Show messages in the order they would be leased, without leasing them. JSON: {"messages": [...]}"""
    show_messages(out, backend.peek(name, state=state, limit=limit), empty=f"{name} has no {state} messages")


@command.command("compact")
@NAME
@on_queues()
def compact(backend: Backend, out: Output, name: str) -> None:
    """Return free space to the file system, for all queues of the file. JSON: {"compacted"}"""
    backend.compact(name)
    out.show({"compacted": name}, lambda: out.fields({"compacted": name}))


@command.command("pause")
@NAME
@on_queues()
def pause(backend: Backend, out: Output, name: str) -> None:
    """Stop leasing messages; pushes go on. JSON: the queue."""
    _pause(backend, out, name, paused=True)


@command.command("resume")
@NAME
@on_queues()
def resume(backend: Backend, out: Output, name: str) -> None:
    """Lease messages again. JSON: the queue."""
    _pause(backend, out, name, paused=False)


def _pause(backend: Backend, out: Output, name: str, *, paused: bool) -> None:
    queue = backend.pause_queue(name, paused=paused)
    out.show(queue, lambda: out.fields({"name": name, "paused": queue["paused"]}))


command.add_command(requeue("requeue-dlq", "--name"))
