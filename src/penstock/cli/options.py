"""Queue options as command-line flags, generated from the model that validates them."""

from __future__ import annotations

from typing import Any

import click
from msgspec import inspect

from penstock.cli.common import Options
from penstock.core.model import QueueOptions


class OrNone(click.ParamType[Any]):
    """A number, or `none` for no limit."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = f"{kind.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self._kind.convert(value, param, ctx)


def queue_options() -> Options:
    options: Options = [
        click.option("--visibility-ms", type=click.INT, help="Same as --lease-ms."),
        click.option(
            "--secret", help="Accept only messages signed with this (16 to 512 characters); none: accept any."
        ),
    ]
    described: Any = inspect.type_info(QueueOptions)
    for field in described.fields:
        if field.name == "dlq":
            # A single flag with an optional value would take the next argument as its value.
            options.append(click.option("--dlq/--no-dlq", default=None, help="Keep dead messages.  [default: yes]"))
            options.append(click.option("--dlq-queue", help="Move dead messages to this queue."))
            continue
        kind, is_nullable = _kind(field.type.type)
        flag = "--" + field.name.replace("_", "-")
        text = f"{field.type.extra_json_schema['description']}  [default: {_shown(field.default)}]".replace("`", "")
        if isinstance(kind, inspect.BoolType):
            options.append(click.option(f"{flag}/--no-{flag[2:]}", default=None, help=text))
            continue
        click_type = _click_type(kind)
        options.append(
            click.option(flag, field.name, type=OrNone(click_type) if is_nullable else click_type, help=text)
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
