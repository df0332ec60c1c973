"""`penstock queue create` and `queue update`, which take every queue option."""

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


@click.command("create")
@NAME
@_with_queue_options
@on_queues(create=True)
def create(backend: Backend, out: Output, name: str, **given: Any) -> None:
    """Create a queue, or do nothing if it exists with the same options. JSON: the queue, with `created`."""
    queue, created = backend.create_queue(name, _chosen(given))
    out.show({**queue, "created": created}, lambda: show_queue(out, queue))
    if not out.as_json and not created:
        note(f"{name} exists already, with these options")


@click.command("update")
@NAME
@_with_queue_options
@on_queues()
def update(backend: Backend, out: Output, name: str, **given: Any) -> None:
    """Change a queue's options; those not given stay as they are. JSON: the queue."""
    changes = _chosen(given)
    if not changes:
        raise click.UsageError("give at least one option to change")
    queue = backend.change_queue(name, changes)
    out.show(queue, lambda: show_queue(out, queue))


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
    secret = options.pop("secret", None)
    if secret is not None and not 16 <= len(secret) <= 512:
        raise click.UsageError(f"--secret must have 16 to 512 characters, got {len(secret)}")
    QueueOptions().changed(options)
    return chosen
