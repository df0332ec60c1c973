"""`penstock message …`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import click
import msgspec

from penstock.cli.common import YES, CommandFailed, Leases, QueueOption, call, exit_partly, fail, on_queues, queue_path
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.messages import show_messages
from penstock.cli.output import Data, Output, confirm, note, payload_cell, plain, when, write
from penstock.client._sync.client import Client
from penstock.core.commands import Settled, SettledAll, SettleItem
from penstock.core.model import Delivery
from penstock.errors import PenstockError, UnknownMessage
from penstock.wire.queue_views import message_view, polled_message
from penstock.wire.queues import SettledItems, SettledOne

SETTLE_BATCH = 1_000
Verb = Literal["ack", "nack", "extend"]

IN_QUEUE = click.option("--queue", cls=QueueOption, required=True, help="Queue name.")
BATCH = click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Most messages to return."
)
WAIT = click.option(
    "--wait-ms", type=click.IntRange(0, 600_000), default=0, show_default=True, help="Wait for a first message."
)
LEASES = click.option(
    "--ids",
    type=Leases(),
    required=True,
    help="id:token as `poll` prints them, comma-separated; an id alone: its current lease (admin); - reads stdin.",
)


LAZY = {"enqueue": ("penstock.cli.enqueue", "Push one payload, or each line of an NDJSON file.")}


@click.group("message", cls=LazyGroup, lazy=LAZY, aliases={"get": "take"})
def command() -> None:
    """Push, lease, acknowledge and inspect messages."""


@command.command("poll")
@IN_QUEUE
@BATCH
@WAIT
@click.option("--visibility-ms", type=click.IntRange(1), help="How long the lease lasts.  [default: the queue's]")
@click.option("--worker", help="Name of this worker, for `penstock workers`.")
@on_queues()
def poll(
    client: Client, out: Output, queue: str, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
) -> None:
    """Lease messages; unless acked by id:token, they are redelivered. JSON: {"messages": [{id, token, payload, …}]}"""
    leased = client.transport.lease(queue, batch, visibility_ms, wait_ms / 1000, None, worker)
    show_messages(
        out, [plain(polled_message(message)) for message in leased], empty=f"no messages available in {queue}"
    )


@command.command("take")
@IN_QUEUE
@BATCH
@WAIT
@on_queues()
def take(client: Client, out: Output, queue: str, batch: int, wait_ms: int) -> None:
    """Lease, acknowledge and print messages: at-most-once delivery. JSON: {"messages": [{id, payload, …}]}"""
    leased = client.transport.lease(queue, batch, None, wait_ms / 1000, None)
    items = [SettleItem(message.id, message.token) for message in leased]
    results = client.transport.settle("ack", queue, items) if items else []
    taken = [_taken(message) for message, result in zip(leased, results, strict=True) if result is Settled.OK]
    show_messages(out, taken, empty=f"no messages available in {queue}")


def _taken(message: Delivery) -> Data:
    """Return the message without its lease, which has ended."""
    return {
        name: value
        for name, value in plain(polled_message(message)).items()
        if name not in ("token", "lease_expires_at")
    }


@command.command("ack")
@IN_QUEUE
@LEASES
@on_queues()
def ack(client: Client, out: Output, queue: str, ids: list[Data]) -> None:
    """Acknowledge messages. JSON: {"results": [{"id", "result": ok | stale | unknown}]}; exit code 3 if some fail."""
    _settle(client, out, "ack", queue, ids)


@command.command("nack")
@IN_QUEUE
@LEASES
@click.option(
    "--delay-ms", type=click.IntRange(0), help="Delay before the next attempt.  [default: the queue's backoff]"
)
@click.option("--error", help="Error text to keep with the message.")
@click.option("--dead", is_flag=True, help="Dead-letter the message now, even if attempts are left.")
@click.option("--discard", is_flag=True, help="Delete the message now, without a dead letter.")
@on_queues()
def nack(client: Client, out: Output, queue: str, ids: list[Data], **how: Any) -> None:
    """Report failure: retry later, or dead-letter after the last attempt. JSON as for `ack`, with the new `state`."""
    chosen = {name: value for name, value in how.items() if value not in (None, False)}
    _settle(client, out, "nack", queue, [{**each, **chosen} for each in ids])


@command.command("extend-lease")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(), required=True, help="id:token; an id alone: its current lease (admin).")
@click.option(
    "--ms", type=click.IntRange(1), help="New lease time, from now.  [default: the queue's visibility timeout]"
)
@on_queues()
def extend_lease(client: Client, out: Output, queue: str, ids: list[Data], ms: int | None) -> None:
    """Extend a lease. JSON as for `ack`, with `lease_expires_at` in epoch milliseconds."""
    _settle(client, out, "extend", queue, ids, ms)


def _settle(client: Client, out: Output, verb: Verb, queue: str, items: Sequence[Data], ms: int | None = None) -> None:
    answer: Data = {"results": []}
    for start in range(0, len(items), SETTLE_BATCH):
        part = _settle_batch(client, verb, queue, items[start : start + SETTLE_BATCH], ms)
        answer["results"] += part["results"]
        answer |= {name: value for name, value in part.items() if name != "results"}
    results = answer["results"]
    with_state = any("state" in each for each in results)
    until = when(answer.get("lease_expires_at"))
    headings = ["ID", "RESULT"] + ["STATE"] * with_state + ["LEASED UNTIL"] * bool(until)
    rows = [[each["id"], each["result"]] + [each.get("state")] * with_state + [until] * bool(until) for each in results]
    out.show(answer, lambda: out.table(headings, rows, empty="nothing to do"))
    done = sum(each["result"] == "ok" for each in results)
    exit_partly(
        done,
        len(results),
        f"{len(results) - done} of {len(results)} failed (stale: the lease has expired; unknown: no such message)",
    )


def _settle_batch(client: Client, verb: Verb, queue: str, items: Sequence[Data], ms: int | None) -> Data:
    transport = client.transport
    if transport.kind == "server":
        body = {"items": items} if ms is None else {"items": items, "ms": ms}
        return call(transport.session, "POST", f"{queue_path(queue)}/{verb}", body, queue=queue)
    sent = [msgspec.convert({"token": None, **each}, SettleItem) for each in items]
    if verb == "ack":
        settled = SettledAll(transport.broker.ack(queue, sent))
    elif verb == "nack":
        settled = transport.broker.nack(queue, sent)
    else:
        settled = transport.broker.extend(queue, sent, lease_ms=ms)
    states = settled.states or [None] * len(sent)
    shown = [
        SettledOne(item.id, result, state) for item, result, state in zip(sent, settled.results, states, strict=True)
    ]
    return plain(SettledItems(shown, settled.leased_until))


@command.command("peek")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(tokens=False), required=True, help="The message's id.")
@on_queues()
def peek(client: Client, out: Output, queue: str, ids: list[Data]) -> None:
    """Show one message, whatever its state, without leasing it. JSON: the message."""
    if len(ids) > 1:
        raise click.UsageError("--id takes one message; `penstock queue peek` shows many")
    found = client.transport.get(queue, ids[0]["id"])
    if found is None:
        raise UnknownMessage(queue, ids[0]["id"])
    message = plain(message_view(found))

    def draw() -> None:
        shown = {name: value for name, value in message.items() if name not in ("errors", "encoding")}
        shown |= {name: when(value) for name, value in message.items() if name.endswith("_at")}
        shown["payload"] = payload_cell(message)
        out.fields(shown)
        for failure in message.get("errors", []):
            if failure.get("traceback"):
                note_at = f"\nattempt {failure['attempt']}, {when(failure['at'])}\n"
                write((note_at + failure["traceback"].rstrip() + "\n").encode("utf-8", "backslashreplace"))

    out.show(message, draw)


@command.command("remove")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(tokens=False), required=True, help="One id, or several separated by commas.")
@YES
@on_queues()
def remove(client: Client, out: Output, queue: str, ids: list[Data], yes: bool) -> None:
    """Delete messages, whatever their state. JSON: {"results": [{"id", "result": ok | unknown}]}"""
    which = f"message {ids[0]['id']}" if len(ids) == 1 else f"{len(ids)} messages"
    confirm(f"Delete {which} of {queue}?", yes)
    results: list[Data] = []
    for each in ids:
        try:
            is_removed = client.transport.remove(queue, each["id"])
        except PenstockError as error:
            if results:
                note(f"stopped after {len(results)} of {len(ids)} messages")
            fail(error)
        results.append({"id": each["id"], "result": "ok" if is_removed else "unknown"})
    rows = [(each["id"], each["result"]) for each in results]
    out.show({"results": results}, lambda: out.table(("ID", "RESULT"), rows, empty="nothing to do"))
    done = sum(each["result"] == "ok" for each in results)
    if len(ids) == 1 and not done:
        raise CommandFailed(f"message {ids[0]['id']} does not exist in {queue}")
    exit_partly(done, len(results), f"{len(results) - done} of {len(results)} messages do not exist")
