"""`penstock message …`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.backend import Backend, Data, Verb
from penstock.cli.common import YES, CommandFailed, Leases, QueueOption, exit_partly, fail, on_queues
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.messages import show_messages
from penstock.cli.output import Output, confirm, note, payload_cell, when, write
from penstock.errors import PenstockError

SETTLE_BATCH = 1_000

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
    backend: Backend, out: Output, queue: str, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
) -> None:
    """Lease messages; unless acked by id:token, they are redelivered. JSON: {"messages": [{id, token, payload, …}]}"""
    leased = backend.poll(queue, batch=batch, wait_ms=wait_ms, visibility_ms=visibility_ms, worker=worker)
    show_messages(out, leased, empty=f"no messages available in {queue}")


@command.command("take")
@IN_QUEUE
@BATCH
@WAIT
@on_queues()
def take(backend: Backend, out: Output, queue: str, batch: int, wait_ms: int) -> None:
    """Lease, acknowledge and print messages: at-most-once delivery. JSON: {"messages": [{id, payload, …}]}"""
    show_messages(out, backend.take(queue, batch=batch, wait_ms=wait_ms), empty=f"no messages available in {queue}")


@command.command("ack")
@IN_QUEUE
@LEASES
@on_queues()
def ack(backend: Backend, out: Output, queue: str, ids: list[Data]) -> None:
    """Acknowledge messages. JSON: {"results": [{"id", "result": ok | stale | unknown}]}; exit code 3 if some fail."""
    _settle(backend, out, "ack", queue, ids)


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
def nack(backend: Backend, out: Output, queue: str, ids: list[Data], **how: Any) -> None:
    """Report failure: retry later, or dead-letter after the last attempt. JSON as for `ack`, with the new `state`."""
    chosen = {name: value for name, value in how.items() if value not in (None, False)}
    _settle(backend, out, "nack", queue, [{**each, **chosen} for each in ids])


@command.command("extend-lease")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(), required=True, help="id:token; an id alone: its current lease (admin).")
@click.option(
    "--ms", type=click.IntRange(1), help="New lease time, from now.  [default: the queue's visibility timeout]"
)
@on_queues()
def extend_lease(backend: Backend, out: Output, queue: str, ids: list[Data], ms: int | None) -> None:
    """Extend a lease. JSON as for `ack`, with `lease_expires_at` in epoch milliseconds."""
    _settle(backend, out, "extend", queue, ids, ms)


def _settle(
    backend: Backend, out: Output, verb: Verb, queue: str, items: Sequence[Data], ms: int | None = None
) -> None:
    answer: Data = {"results": []}
    for start in range(0, len(items), SETTLE_BATCH):
        part = backend.settle(verb, queue, items[start : start + SETTLE_BATCH], ms=ms)
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


@command.command("peek")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(tokens=False), required=True, help="The message's id.")
@on_queues()
def peek(backend: Backend, out: Output, queue: str, ids: list[Data]) -> None:
    """Show one message, whatever its state, without leasing it. JSON: the message."""
    if len(ids) > 1:
        raise click.UsageError("--id takes one message; `penstock queue peek` shows many")
    message = backend.get(queue, ids[0]["id"])

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
def remove(backend: Backend, out: Output, queue: str, ids: list[Data], yes: bool) -> None:
    """Delete messages, whatever their state. JSON: {"results": [{"id", "result": ok | unknown}]}"""
    which = f"message {ids[0]['id']}" if len(ids) == 1 else f"{len(ids)} messages"
    confirm(f"Delete {which} of {queue}?", yes)
    results: list[Data] = []
    for each in ids:
        try:
            backend.remove(queue, each["id"])
        except PenstockError as error:
            if error.code != "unknown_message":
                if results:
                    note(f"stopped after {len(results)} of {len(ids)} messages")
                fail(error)
            results.append({"id": each["id"], "result": "unknown"})
        else:
            results.append({"id": each["id"], "result": "ok"})
    rows = [(each["id"], each["result"]) for each in results]
    out.show({"results": results}, lambda: out.table(("ID", "RESULT"), rows, empty="nothing to do"))
    done = sum(each["result"] == "ok" for each in results)
    if len(ids) == 1 and not done:
        raise CommandFailed(f"message {ids[0]['id']} does not exist in {queue}")
    exit_partly(done, len(results), f"{len(results) - done} of {len(results)} messages do not exist")
