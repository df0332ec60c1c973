"""Queue options as command-line flags, generated from the model that validates them."""

from __future__ import annotations

from typing import Any

import click
from msgspec import inspect

from penstock.cli.common import Options
from penstock.core.model import QueueOptions

HELP = {
    "lease_ms": "Same as --visibility-ms.",
    "max_attempts": "Deliveries before a message is dead-lettered.",
    "backoff": "How the delay grows from one nack to the next.",
    "backoff_ms": "Delay after the first nack.",
    "backoff_max_ms": "Longest delay after a nack.",
    "max_in_flight": "Most messages leased at once.",
    "delay_ms": "Delay before a new message can be leased.",
    "window_ms": "Hold messages back to lease them together.",
    "ttl_ms": "Drop messages older than this.",
    "priority": "Priority of this queue within its namespace.",
    "max_size": "Most messages in the queue; further pushes are refused.",
    "push_rate": "Most messages per second; further pushes are refused.",
    "push_burst": "Most messages at once above the push rate.",
    "dlq": "Keep dead letters, or drop them.",
    "dlq_queue": "Move dead letters to this queue.",
    "require_lease_token": "Settle messages only with their lease token.",
    "archive_ms": "How long to keep acknowledged messages; 0: not at all.",
    "dedupe_ms": "How long to remember idempotency keys.",
    "journal": "What to record of each message.",
}


class OrNone(click.ParamType[Any]):
    """A number, or `none` for no limit."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = f"{kind.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self._kind.convert(value, param, ctx)


def queue_options() -> Options:
    options: Options = [
        click.option("--visibility-ms", type=click.INT, help="How long a lease lasts.  [default: 30000]"),
        click.option(
            "--secret", help="Accept only messages signed with this (16 to 512 characters); none: accept any."
        ),
    ]
    described: Any = inspect.type_info(QueueOptions)
    for field in described.fields:
        if field.name == "dlq":
            # A single flag with an optional value would take the next argument as its value.
            options.append(click.option("--dlq/--no-dlq", default=None, help=f"{HELP['dlq']}  [default: yes]"))
            options.append(click.option("--dlq-queue", help=HELP["dlq_queue"]))
            continue
        kind, nullable = _kind(field.type)
        flag = "--" + field.name.replace("_", "-")
        text = HELP.get(field.name, "")
        if field.name != "lease_ms":
            text += f"  [default: {_shown(field.default)}]"
        if isinstance(kind, inspect.BoolType):
            options.append(click.option(f"{flag}/--no-{flag[2:]}", default=None, help=text.strip()))
            continue
        click_type = _click_type(kind)
        options.append(
            click.option(flag, field.name, type=OrNone(click_type) if nullable else click_type, help=text.strip())
        )
    return options


def _kind(described: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None was part of it."""
    if isinstance(described, inspect.UnionType):
        [kind] = [each for each in described.types if not isinstance(each, inspect.NoneType)]
        return kind, True
    return described, False


def _click_type(kind: Any) -> click.ParamType[Any]:
    if isinstance(kind, inspect.LiteralType):
        return click.Choice([str(value) for value in kind.values])
    return click.INT if isinstance(kind, inspect.IntType) else click.FLOAT


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
