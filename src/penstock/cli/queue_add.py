"""`penstock queue add` and `queue set`: the ones that take all of a queue's options."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.backend import Backend, Data
from penstock.cli.common import NAME, Command, on_queues, with_options
from penstock.cli.messages import show_queue
from penstock.cli.options import queue_options
from penstock.cli.output import Output, note
from penstock.core.model import QueueOptions


def _with_queue_options(function: Command) -> Command:
    return with_options(function, queue_options())


@click.command("add")
@NAME
@_with_queue_options
@on_queues(create=True)
def add(backend: Backend, out: Output, name: str, **given: Any) -> None:
    """Make a queue. One that exists just so is left as it is. JSON: the queue, with `created`."""
    queue, created = backend.create_queue(name, _chosen(given))
    out.show({**queue, "created": created}, lambda: show_queue(out, queue))
    if not out.as_json and not created:
        note(f"{name} was there already, just so")


@click.command("set")
@NAME
@_with_queue_options
@on_queues()
def set_options(backend: Backend, out: Output, name: str, **given: Any) -> None:
    """Change a queue's options; those not named stay."""
    changes = _chosen(given)
    if not changes:
        raise click.UsageError("name at least one option to change")
    queue = backend.change_queue(name, changes)
    out.show(queue, lambda: show_queue(out, queue))


def _chosen(given: dict[str, Any]) -> Data:
    chosen = {}
    for name, value in given.items():
        if value is not None:
            chosen[name] = None if value == "none" else value
    if "visibility_ms" in chosen and "lease_ms" in chosen:
        raise click.UsageError("--visibility-ms and --lease-ms are one thing: name one of them")
    if "dlq_queue" in chosen:
        if "dlq" in chosen:
            raise click.UsageError("--dlq-queue says where dead letters go: leave out --dlq and --no-dlq")
        chosen["dlq"] = chosen.pop("dlq_queue")
    options = {"lease_ms" if name == "visibility_ms" else name: value for name, value in chosen.items()}
    secret = options.pop("secret", None)
    if secret is not None and not 16 <= len(secret) <= 512:
        raise click.UsageError("--secret has 16 to 512 characters")
    QueueOptions().changed(options)
    return chosen
