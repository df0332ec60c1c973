"""Generates the reference of the command line from its click commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from penstock.cli import cli
from tools.reference.text import code, table


def page() -> str:
    parts = ["# CLI\n\n", inspect.cleandoc(cli.help or ""), "\n"]
    for path, command in _commands(cli, "penstock"):
        parts.append(_section(path, command))
    return "".join(parts)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    rows = [
        (code(record[0]), record[1])
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None
    ]
    about = "\n".join(line.strip() for line in (command.help or "").replace("\b", "").strip().splitlines())
    return f"\n## {path}\n\n{code(usage)}\n\n{about}\n\n{table(('option', 'meaning'), rows)}"
