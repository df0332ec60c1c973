"""`penstock serve`: the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.common import fail
from penstock.config import load_settings
from penstock.errors import InvalidInput, MissingExtra


@click.command("serve")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port; 0 picks a free one.  [default: 8888]")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder.  [default: ./penstock-data]")
@click.option("--db", type=click.Path(dir_okay=False), help="SQLite file, if it is not in the data folder.")
@click.option("--store", help="Database URL: sqlite:///path or postgresql://user@host/database.")
@click.option(
    "--lake",
    type=click.Path(file_okay=False),
    help="Folder or URL (s3://…) of the pipeline's tables.  [default: lake, beside the file]",
)
@click.option("--journal/--no-journal", default=None, help="Record all events in a journal.  [default: yes]")
@click.option("--durability", type=click.Choice(["full", "relaxed"]), help="[default: full]")
@click.option("--insecure", is_flag=True, default=None, help="Allow other machines to connect without a token.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False))
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False))
@click.option("--access-log/--no-access-log", default=None, help="Log one JSON line per request.  [default: on]")
@click.option("--otel", is_flag=True, default=None, help="Send OpenTelemetry traces (penstock-mq[otel]).")
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file with settings.")
def command(config: Path | None, **flags: Any) -> None:
    """Serve queues over HTTP. AUTH_TOKEN or PENSTOCK_AUTH_TOKEN sets the admin token."""
    try:
        from penstock.server.serve import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "penstock":
            raise
        fail(MissingExtra("server"))
    try:
        run(load_settings(flags, file=config))
    except InvalidInput as error:
        fail(error)
