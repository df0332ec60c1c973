"""Human-readable output of messages and queues."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.backend import Data
from penstock.cli.output import Output, payload_cell, when


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
