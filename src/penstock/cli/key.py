"""`penstock key …`: API keys of one queue."""

from __future__ import annotations

from collections.abc import Sequence

import click

from penstock.cli.backend import Backend
from penstock.cli.common import QUEUE, on_queues
from penstock.cli.output import Output, note, when

OF_QUEUE = click.option("--queue", type=QUEUE, required=True, help="The queue that the key opens.")


@click.group("key")
def command() -> None:
    """Make, list and revoke a queue's API keys."""


@command.command("add")
@OF_QUEUE
@click.option("--name", default="", help="What it is for.")
@click.option(
    "--right",
    "rights",
    type=click.Choice(["push", "consume", "admin"]),
    multiple=True,
    help="Repeatable.  [default: push and consume]",
)
@on_queues()
def add(backend: Backend, out: Output, queue: str, name: str, rights: Sequence[str]) -> None:
    """Make a key. It is shown this once. JSON: {"id", "queue", "name", "rights", "created_at", "key"}"""
    key = backend.add_key(queue, name=name, rights=list(dict.fromkeys(rights)) or ["push", "consume"])
    shown = {"id": key["id"], "rights": ", ".join(key["rights"]), "key": key["key"]}
    out.show(key, lambda: out.fields(shown))
    if not out.as_json:
        note("keep it: it is not stored and cannot be shown again")


@command.command("list")
@OF_QUEUE
@on_queues()
def list_keys(backend: Backend, out: Output, queue: str) -> None:
    """List keys, without their secrets. JSON: {"keys": [...]}"""
    keys = backend.list_keys(queue)
    rows = [(key["id"], key["name"] or None, ", ".join(key["rights"]), when(key["created_at"])) for key in keys]
    headings = ("ID", "NAME", "RIGHTS", "CREATED")
    out.show({"keys": keys}, lambda: out.table(headings, rows, empty=f"{queue} has no keys"))


@command.command("rm")
@OF_QUEUE
@click.option("--id", "key_id", required=True, help="As `key list` shows it.")
@on_queues()
def remove(backend: Backend, out: Output, queue: str, key_id: str) -> None:
    """Revoke a key. JSON: {"removed"}"""
    backend.remove_key(queue, key_id)
    out.show({"removed": key_id}, lambda: out.fields({"removed": key_id}))
