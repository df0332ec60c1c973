"""`penstock serve`, for now: a LiteQueue at work in a scratch file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from penstock.lite import LiteQueue


@click.command("serve")
def command() -> None:
    """Show a queue at work."""
    with tempfile.TemporaryDirectory() as folder, LiteQueue(Path(folder) / "demo.db") as queue:
        click.echo(f"a queue in {folder}: every put is on disk before it is answered")
        queue.put_many([f"order {number}".encode() for number in range(1, 4)])
        while True:
            with queue.process() as message:
                if message is None:
                    break
                click.echo(f"{message.id}  {message.data.decode()}")
        click.echo("all done, and gone")
