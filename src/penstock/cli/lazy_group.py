"""A group of commands that imports one only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """`late` has, by name, where each command is (`module`, for its `command`, or `module:name`) and a line of help."""

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._late})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._late:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._late[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: line for name, (_, line) in self._late.items()}
        for name, command in self.commands.items():
            lines[name] = command.get_short_help_str(limit=80)
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))
