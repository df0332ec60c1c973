"""`penstock key …`: API keys of one queue or one stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import click

from penstock.cli.backend import Backend, KeyOwner
from penstock.cli.common import QUEUE, YES, Command, QueueOption, on_queues
from penstock.cli.output import Output, confirm, note, when


def of_owner(command: Command) -> Command:
    """Add --queue and --stream to a command, exactly one of which must be given."""

    @wraps(command)
    def run(*arguments: Any, queue: str | None, stream: str | None, **rest: Any) -> None:
        if (queue is None) == (stream is None):
            raise click.UsageError("give either --queue or --stream")
        command(*arguments, owner=KeyOwner(queue, stream), **rest)

    run = click.option("--stream", type=QUEUE, help="Stream that the key gives access to.")(run)
    return click.option("--queue", cls=QueueOption, help="Queue that the key gives access to.")(run)


@click.group("key")
def command() -> None:
    """Create, list and revoke API keys of a queue or a stream."""


@command.command("add")
@click.option("--name", default="", help="Name of the key, such as what it is for.")
@click.option(
    "--right",
    "rights",
    type=click.Choice(["push", "consume", "admin"]),
    multiple=True,
    help="Right of the key; repeatable.  [default: push and consume]",
)
@on_queues()
@of_owner
def add(backend: Backend, out: Output, owner: KeyOwner, name: str, rights: Sequence[str]) -> None:
    """Create a key and print it, once. JSON: {"id", "queue" or "stream", "name", "rights", "created_at", "key"}"""
    key = backend.add_key(owner, name=name, rights=list(dict.fromkeys(rights)) or ["push", "consume"])
    shown = {"id": key["id"], "rights": ", ".join(key["rights"]), "key": key["key"]}
    out.show(key, lambda: out.fields(shown))
    if not out.as_json:
        note("save the key now: it cannot be shown again")


@command.command("list")
@on_queues()
@of_owner
def list_keys(backend: Backend, out: Output, owner: KeyOwner) -> None:
    """List keys, without their secrets. JSON: {"keys": [...]}"""
    keys = backend.list_keys(owner)
    rows = [(key["id"], key["name"] or None, ", ".join(key["rights"]), when(key["created_at"])) for key in keys]
    headings = ("ID", "NAME", "RIGHTS", "CREATED")
    out.show({"keys": keys}, lambda: out.table(headings, rows, empty=f"{owner.name} has no keys"))


@command.command("rm")
@click.option("--id", "key_id", required=True, help="Id of the key, as in `penstock key list`.")
@YES
@on_queues()
@of_owner
def remove(backend: Backend, out: Output, owner: KeyOwner, key_id: str, yes: bool) -> None:
    """Revoke a key. JSON: {"removed"}"""
    confirm(f"Revoke the key {key_id} of {owner.name}?", yes)
    backend.remove_key(owner, key_id)
    out.show({"removed": key_id}, lambda: out.fields({"removed": key_id}))
