"""`penstock completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for the shell; for example, put eval "$(penstock completion bash)" in ~/.bashrc."""
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
