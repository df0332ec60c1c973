"""`penstock health`"""

from __future__ import annotations

import click

from penstock.cli.common import DATA_DECODER, CommandFailed, on_server
from penstock.cli.output import Output
from penstock.cli.responses import stream, with_whole_body
from penstock.client._sync.http_session import Session
from penstock.client.response_errors import error_of


@click.command("health")
@on_server
def command(session: Session, out: Output) -> None:
    """Check whether the server is ready. Exit code 1 if not. JSON: {"ready", "checks": {name: verdict}}"""
    # A server that is not ready answers 503, with the same report.
    answer = with_whole_body(stream(session, "/readyz"))
    if answer.status >= 400 and answer.status != 503:
        raise error_of(answer, None, session.where)
    health = session.read(DATA_DECODER, answer)
    out.show(health, lambda: out.fields({"ready": health["ready"], **health["checks"]}))
    if not health["ready"]:
        raise CommandFailed("the server is not ready")
