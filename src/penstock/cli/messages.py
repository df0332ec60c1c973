"""Human-readable output of messages and queues."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from penstock.cli.common import PAGE, every
from penstock.cli.output import Data, Output, payload_cell, plain, when
from penstock.client._sync.client import Client
from penstock.core.model import State
from penstock.wire.queue_views import message_view


def peek_messages(client: Client, queue: str, state: str, limit: int) -> list[Data]:
    """Return up to `limit` messages without leasing them, reading as many pages as needed."""
    found = every(lambda after: client.transport.peek(queue, State(state), min(limit, PAGE), after))
    return [plain(message_view(message)) for message in islice(found, limit)]


def show_messages(out: Output, messages: Sequence[Data], *, empty: str) -> None:
    """Print messages as a table, or as JSON: {"messages": [...]}, each as the HTTP API returns it."""
    headings = ["ID", "ATTEMPTS", "PRIORITY", "CREATED", "PAYLOAD"]
    rows = [
        [message["id"], message["attempts"], message["priority"], when(message["created_at"]), payload_cell(message)]
        for message in messages
    ]
    if any("token" in message for message in messages):
        headings.insert(1, "TOKEN")
        headings.insert(4, "LEASED UNTIL")
        for row, message in zip(rows, messages, strict=True):
            row.insert(1, message["token"])
            row.insert(4, when(message["lease_expires_at"]))
    if any("error" in message for message in messages):
        headings.insert(-1, "ERROR")
        for row, message in zip(rows, messages, strict=True):
            row.insert(-1, message.get("error"))
    out.show({"messages": messages}, lambda: out.table(headings, rows, empty=empty))


def show_queue(out: Output, queue: Data) -> None:
    shown = {name: queue[name] for name in ("name", "visibility_ms", "max_attempts", "dlq", "paused")}
    shown["created"] = when(queue["created_at"])
    is_shown = {"lease_ms", "max_attempts", "dlq"}
    out.fields(shown | {name: value for name, value in queue["options"].items() if name not in is_shown})
