"""A command group that imports a command only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group whose commands are imported on first use.

    `lazy` maps the name of a command to where it is (`module`, for its `command`, or `module:name`) and to its help
    line. `aliases` maps other names, which the help does not list, to commands.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(*args, **rest)
        self._lazy = lazy or {}
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._aliases.get(cmd_name, cmd_name)
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: line for name, (_, line) in self._lazy.items()}
        for name, command in self.commands.items():
            lines[name] = command.get_short_help_str(limit=80)
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))
