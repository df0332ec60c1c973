"""The `penstock` command: one file per noun, loaded when it is used."""

from __future__ import annotations

import sys
from importlib import import_module, metadata

import click

from penstock.errors import PenstockError

COMMANDS = {
    "doctor": "penstock.cli.doctor",
    "serve": "penstock.cli.serve",
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = import_module(module).command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("penstock"), prog_name="penstock")
def cli() -> None:
    """The message queue that grows with your program."""


def main() -> None:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2 if isinstance(error, click.UsageError) else 1)
    except PenstockError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
