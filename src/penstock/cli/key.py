"""`penstock key …`: API keys of one queue or one stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from penstock.cli.common import QUEUE, YES, Command, QueueOption, call, on_queues
from penstock.cli.output import Data, Output, confirm, note, plain, when
from penstock.client._sync.client import Client
from penstock.errors import NotFound
from penstock.wire.queues import KeyView


class KeyOwner(NamedTuple):
    """The queue or the stream that an API key gives access to."""

    queue: str | None
    stream: str | None

    @property
    def name(self) -> str:
        return self.queue or self.stream or ""

    @property
    def path(self) -> str:
        """The path of its keys at a server."""
        return f"/{'queues' if self.queue else 'streams'}/{quote(self.name, safe='')}/keys"


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
def add(client: Client, out: Output, owner: KeyOwner, name: str, rights: Sequence[str]) -> None:
    """Create a key and print it, once. JSON: {"id", "queue" or "stream", "name", "rights", "created_at", "key"}"""
    key = _add(client, owner, name, list(dict.fromkeys(rights)) or ["push", "consume"])
    shown = {"id": key["id"], "rights": ", ".join(key["rights"]), "key": key["key"]}
    out.show(key, lambda: out.fields(shown))
    if not out.as_json:
        note("save the key now: it cannot be shown again")


@command.command("list")
@on_queues()
@of_owner
def list_keys(client: Client, out: Output, owner: KeyOwner) -> None:
    """List keys, without their secrets. JSON: {"keys": [...]}"""
    keys = _list(client, owner)
    rows = [(key["id"], key["name"] or None, ", ".join(key["rights"]), when(key["created_at"])) for key in keys]
    headings = ("ID", "NAME", "RIGHTS", "CREATED")
    out.show({"keys": keys}, lambda: out.table(headings, rows, empty=f"{owner.name} has no keys"))


@command.command("rm")
@click.option("--id", "key_id", required=True, help="Id of the key, as in `penstock key list`.")
@YES
@on_queues()
@of_owner
def remove(client: Client, out: Output, owner: KeyOwner, key_id: str, yes: bool) -> None:
    """Revoke a key. JSON: {"removed"}"""
    confirm(f"Revoke the key {key_id} of {owner.name}?", yes)
    _remove(client, owner, key_id)
    out.show({"removed": key_id}, lambda: out.fields({"removed": key_id}))


def _add(client: Client, owner: KeyOwner, name: str, rights: list[str]) -> Data:
    transport = client.transport
    if transport.kind == "server":
        return call(transport.session, "POST", owner.path, {"name": name, "rights": rights}, queue=owner.name)
    from penstock.core.api_keys import new_key

    key_id, secret, digest = new_key()
    key = transport.broker.add_key(**owner._asdict(), id=key_id, name=name, hash=digest, rights=rights)
    return plain(KeyView.of(key, secret))


def _list(client: Client, owner: KeyOwner) -> list[Data]:
    transport = client.transport
    if transport.kind == "server":
        found: list[Data] = call(transport.session, "GET", owner.path, queue=owner.name)["keys"]
        return found
    if owner.queue:
        transport.info(owner.queue)  # Raises UnknownQueue.
    return [plain(KeyView.of(key)) for key in transport.broker.list_keys(**owner._asdict())]


def _remove(client: Client, owner: KeyOwner, key_id: str) -> None:
    transport = client.transport
    if transport.kind == "server":
        call(transport.session, "DELETE", f"{owner.path}/{quote(key_id, safe='')}", queue=owner.name)
        return
    if not transport.broker.remove_keys(key_id, **owner._asdict()):
        raise NotFound(f"there is no such key on this {'queue' if owner.queue else 'stream'}")
