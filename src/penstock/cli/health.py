"""`penstock health`"""

from __future__ import annotations

import click

from penstock.cli.common import CommandFailed, on_server
from penstock.cli.output import Output
from penstock.cli.remote import RemoteBackend


@click.command("health")
@on_server
def command(backend: RemoteBackend, out: Output) -> None:
    """Check whether the server is ready. Exit code 1 if not. JSON: {"ready", "checks": {name: verdict}}"""
    health = backend.ready()
    out.show(health, lambda: out.fields({"ready": health["ready"], **health["checks"]}))
    if not health["ready"]:
        raise CommandFailed("the server is not ready")
