"""A queue's options as flags, made from the model that checks them."""

from __future__ import annotations

from typing import Any

import click
from msgspec import inspect

from penstock.cli.common import Options
from penstock.core.model import QueueOptions

HELP = {
    "lease_ms": "Same as --visibility-ms.",
    "max_attempts": "Deliveries before a message is dead.",
    "backoff": "How the wait after a nack grows.",
    "backoff_ms": "Wait after the first nack.",
    "backoff_max_ms": "Longest wait after a nack.",
    "max_in_flight": "Most messages leased at once.",
    "delay_ms": "Wait before a new message can be leased.",
    "window_ms": "Hold messages back to lease them together.",
    "ttl_ms": "Drop messages older than this.",
    "priority": "Of this queue among others of its namespace.",
    "max_size": "Most messages; more are refused.",
    "push_rate": "Most messages a second; more are refused.",
    "push_burst": "How many may come at once.",
    "dlq": "Keep dead letters, or drop them.",
    "dlq_queue": "Move dead letters to this queue.",
    "require_lease_token": "Settle messages only with the token of their lease.",
    "archive_ms": "How long done messages are kept; 0: not at all.",
    "dedupe_ms": "How long idempotency keys are remembered.",
    "journal": "What is recorded of each message.",
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
        click.option("--secret", help="Take only messages signed with this, of 16 letters or more; none: any."),
    ]
    described: Any = inspect.type_info(QueueOptions)
    for field in described.fields:
        if field.name == "dlq":
            # A flag whose value may be left out would take the next argument for it.
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
    """The type itself, and whether it may be none."""
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
