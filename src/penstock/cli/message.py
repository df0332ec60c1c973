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

IN_QUEUE = click.option("--queue", cls=QueueOption, required=True, help="The queue.")
BATCH = click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="At most so many.")
WAIT = click.option(
    "--wait-ms", type=click.IntRange(0, 600_000), default=0, show_default=True, help="Wait for the first to come."
)
LEASES = click.option(
    "--ids",
    type=Leases(),
    required=True,
    help="id:token as `poll` shows them, between commas; a bare id means its current lease (admin); - reads stdin.",
)


LATE = {"enqueue": ("penstock.cli.enqueue", "Push one payload, or each line of an NDJSON file.")}


@click.group("message", cls=LazyGroup, late=LATE)
def command() -> None:
    """Push, lease, settle and look at messages."""


@command.command("poll")
@IN_QUEUE
@BATCH
@WAIT
@click.option("--visibility-ms", type=click.IntRange(1), help="How long the lease lasts.  [default: the queue's]")
@click.option("--worker", help="Who leases, for others to see.")
@on_queues()
def poll(
    backend: Backend, out: Output, queue: str, batch: int, wait_ms: int, visibility_ms: int | None, worker: str | None
) -> None:
    """Lease messages. Ack them by id:token, or they come back. JSON: {"messages": [{id, token, payload, …}]}"""
    leased = backend.poll(queue, batch=batch, wait_ms=wait_ms, visibility_ms=visibility_ms, worker=worker)
    show_messages(out, leased, empty=f"nothing is ready in {queue}")


@command.command("get")
@IN_QUEUE
@BATCH
@WAIT
@on_queues()
def get(backend: Backend, out: Output, queue: str, batch: int, wait_ms: int) -> None:
    """Take messages: they are done once shown, at most once. JSON: {"messages": [{id, payload, …}]}"""
    show_messages(out, backend.take(queue, batch=batch, wait_ms=wait_ms), empty=f"nothing is ready in {queue}")


@command.command("ack")
@IN_QUEUE
@LEASES
@on_queues()
def ack(backend: Backend, out: Output, queue: str, ids: list[Data]) -> None:
    """Done. JSON: {"results": [{"id", "result": ok | stale | unknown}]}; exit code 3 if only some are ok."""
    _settle(backend, out, "ack", queue, ids)


@command.command("nack")
@IN_QUEUE
@LEASES
@click.option("--delay-ms", type=click.IntRange(0), help="Until the next try.  [default: the queue's back-off]")
@click.option("--error", help="What went wrong; kept with the message.")
@click.option("--dead", is_flag=True, help="Make it a dead letter now, whatever attempts are left.")
@click.option("--discard", is_flag=True, help="Drop it now, without a dead letter.")
@on_queues()
def nack(backend: Backend, out: Output, queue: str, ids: list[Data], **how: Any) -> None:
    """Failed: try again later, or dead when no attempts are left. JSON as of `ack`, with the new `state`."""
    chosen = {name: value for name, value in how.items() if value not in (None, False)}
    _settle(backend, out, "nack", queue, [{**each, **chosen} for each in ids])


@command.command("extend-lease")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(), required=True, help="id:token; a bare id: its current lease (admin).")
@click.option("--ms", type=click.IntRange(1), help="From now.  [default: the queue's visibility]")
@on_queues()
def extend_lease(backend: Backend, out: Output, queue: str, ids: list[Data], ms: int | None) -> None:
    """Keep a lease longer. JSON as of `ack`, with `lease_expires_at` in epoch milliseconds."""
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
        f"{len(results) - done} of {len(results)} not done: stale is a lease that is over, unknown a message not there",
    )


@command.command("peek")
@IN_QUEUE
@click.option("--id", "ids", type=Leases(tokens=False), required=True, help="The message's id.")
@on_queues()
def peek(backend: Backend, out: Output, queue: str, ids: list[Data]) -> None:
    """Show one message, whatever its state, without leasing it. JSON: the message."""
    if len(ids) > 1:
        raise click.UsageError("--id is one message; `queue peek` shows many")
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
@click.option("--id", "ids", type=Leases(tokens=False), required=True, help="One id, or several between commas.")
@YES
@on_queues()
def remove(backend: Backend, out: Output, queue: str, ids: list[Data], yes: bool) -> None:
    """Remove messages, whatever their state. JSON: {"results": [{"id", "result": ok | unknown}]}"""
    which = f"message {ids[0]['id']}" if len(ids) == 1 else f"{len(ids)} messages"
    confirm(f"Remove {which} of {queue}?", yes)
    results: list[Data] = []
    for each in ids:
        try:
            backend.remove(queue, each["id"])
        except PenstockError as error:
            if error.code != "unknown_message":
                if results:
                    note(f"{len(results)} of {len(ids)} were looked at")
                fail(error)
            results.append({"id": each["id"], "result": "unknown"})
        else:
            results.append({"id": each["id"], "result": "ok"})
    rows = [(each["id"], each["result"]) for each in results]
    out.show({"results": results}, lambda: out.table(("ID", "RESULT"), rows, empty="nothing to do"))
    done = sum(each["result"] == "ok" for each in results)
    if len(ids) == 1 and not done:
        raise CommandFailed(f"there is no message {ids[0]['id']} in {queue}")
    exit_partly(done, len(results), f"{len(results) - done} of {len(results)} are not there")
