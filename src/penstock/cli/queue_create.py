"""`penstock queue create` and `queue update`, which take every queue option."""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from penstock.cli.common import DATA_DECODER, NAME, Command, on_queues, queue_path, with_options
from penstock.cli.messages import show_queue
from penstock.cli.options import queue_options
from penstock.cli.output import Data, Output, note, plain
from penstock.client._sync.client import Client
from penstock.core.model import QueueOptions
from penstock.errors import Conflict
from penstock.wire.queue_views import queue_view


def _with_queue_options(function: Command) -> Command:
    return with_options(function, queue_options())


@click.command("create")
@NAME
@_with_queue_options
@on_queues(create=True)
def create(client: Client, out: Output, name: str, **given: Any) -> None:
    """Create a queue, or do nothing if it exists with the same options. JSON: the queue, with `created`."""
    queue, created = _configure(client, name, _chosen(given), create=True)
    out.show({**queue, "created": created}, lambda: show_queue(out, queue))
    if not out.as_json and not created:
        note(f"{name} exists already, with these options")


@click.command("update")
@NAME
@_with_queue_options
@on_queues()
def update(client: Client, out: Output, name: str, **given: Any) -> None:
    """Change a queue's options; those not given stay as they are. JSON: the queue."""
    changes = _chosen(given)
    if not changes:
        raise click.UsageError("give at least one option to change")
    queue, _ = _configure(client, name, changes, create=False)
    out.show(queue, lambda: show_queue(out, queue))


def _configure(client: Client, name: str, options: Data, *, create: bool) -> tuple[Data, bool]:
    """Create or change a queue and its secret. Return the queue, and whether it was created."""
    transport = client.transport
    if transport.kind == "server":
        method, path, body = "PATCH", queue_path(name), options
        if create:
            method, path, body = "POST", "/queues", {"name": name, **options}
        answer, _ = transport.session.request(method, path, body, queue=name)
        return transport.session.read(DATA_DECODER, answer), answer.status == 201
    broker = transport.broker
    changes = dict(options)
    secret = changes.pop("secret", UNSET)
    configured = broker.configure(name, changes, create=QueueOptions() if create else None, exact=create)
    if secret is not UNSET and create and not configured.created:
        if broker.find_secret(name) != secret:
            raise Conflict(f"queue {name!r} exists with another secret", hint="change it with `penstock queue update`")
    elif secret is not UNSET:
        broker.set_secret(name, secret)
    return plain(queue_view(configured.info)), configured.created


def _chosen(given: dict[str, Any]) -> Data:
    chosen = {}
    for name, value in given.items():
        if value is not None:
            chosen[name] = None if value == "none" else value
    if "visibility_ms" in chosen and "lease_ms" in chosen:
        raise click.UsageError("--visibility-ms and --lease-ms are the same option: give one of them")
    if "dlq_queue" in chosen:
        if "dlq" in chosen:
            raise click.UsageError("--dlq-queue excludes --dlq and --no-dlq")
        chosen["dlq"] = chosen.pop("dlq_queue")
    options = {"lease_ms" if name == "visibility_ms" else name: value for name, value in chosen.items()}
    secret = options.get("secret")
    if secret is not None and not 16 <= len(secret) <= 512:
        raise click.UsageError(f"--secret must have 16 to 512 characters, got {len(secret)}")
    QueueOptions().changed({name: value for name, value in options.items() if name != "secret"})
    return options
