"""`penstock queue …`"""

from __future__ import annotations

import click

from penstock.cli.common import LONG_SECONDS, NAME, PAGE, YES, call, every, on_queues, queue_path
from penstock.cli.dlq import purge_messages, requeue
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.messages import peek_messages, show_messages, show_queue
from penstock.cli.output import Output, confirm, plain
from penstock.cli.stats import show_stats
from penstock.client._sync.client import Client
from penstock.wire.queue_views import queue_view

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
def list_queues(client: Client, out: Output, prefix: str) -> None:
    """List queues. JSON: {"queues": [...]}, each as in `queue show`, without stats."""
    found = every(lambda after: client.queues(prefix=prefix, limit=PAGE, after=after))
    queues = [plain(queue_view(queue)) for queue in found]
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
def delete(client: Client, out: Output, name: str, force: bool, yes: bool) -> None:
    """Delete a queue; if it holds messages, only with --force. JSON: {"dropped", "messages"}"""
    confirm(f"Delete the queue {name}{' and all its messages' if force else ''}?", yes)
    dropped = {"dropped": name, "messages": client.queue(name).drop(force=force)}
    out.show(dropped, lambda: out.fields(dropped))


@command.command("show")
@NAME
@on_queues()
def show(client: Client, out: Output, name: str) -> None:
    """Show a queue's options, counts and rates. JSON: the queue, with `options`, `totals` and `stats`."""
    stats = plain(client.queue(name).stats())
    queue = plain(queue_view(client.queue(name).info()))

    def draw() -> None:
        show_queue(out, queue)
        show_stats(out, stats)

    out.show({**queue, "stats": stats}, draw)


@command.command("purge")
@NAME
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@YES
@on_queues(timeout=LONG_SECONDS)
def purge(client: Client, out: Output, name: str, dry_run: bool, yes: bool) -> None:
    """Delete all ready and scheduled messages; leased and dead ones stay. JSON: {"purged", "dry_run"}"""
    if not dry_run:
        confirm(f"Remove every waiting message of {name}?", yes)
    purge_messages(client, out, name, dead=False, dry_run=dry_run)


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
def peek(client: Client, out: Output, name: str, limit: int, state: str) -> None:
    """Show messages in the order they would be leased, without leasing them. JSON: {"messages": [...]}"""
    show_messages(out, peek_messages(client, name, state, limit), empty=f"{name} has no {state} messages")


@command.command("compact")
@NAME
@on_queues(timeout=LONG_SECONDS)
def compact(client: Client, out: Output, name: str) -> None:
    """Return free space to the file system, for all queues of the file. JSON: {"compacted"}"""
    transport = client.transport
    if transport.kind == "server":
        call(transport.session, "POST", f"{queue_path(name)}/compact", queue=name)
    else:
        transport.info(name)  # Raises UnknownQueue.
        transport.broker.compact()
    out.show({"compacted": name}, lambda: out.fields({"compacted": name}))


@command.command("pause")
@NAME
@on_queues()
def pause(client: Client, out: Output, name: str) -> None:
    """Stop leasing messages; pushes go on. JSON: the queue."""
    _pause(client, out, name, paused=True)


@command.command("resume")
@NAME
@on_queues()
def resume(client: Client, out: Output, name: str) -> None:
    """Lease messages again. JSON: the queue."""
    _pause(client, out, name, paused=False)


def _pause(client: Client, out: Output, name: str, *, paused: bool) -> None:
    client.transport.pause(name, paused)
    queue = plain(queue_view(client.queue(name).info()))
    out.show(queue, lambda: out.fields({"name": name, "paused": queue["paused"]}))


command.add_command(requeue("requeue-dlq", "--name"))
