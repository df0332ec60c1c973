"""Generates the tables of options, settings, metrics, events and lake tables from their definitions."""

from __future__ import annotations

import inspect
from typing import Any

import click
from prometheus_client.core import Metric

from penstock.cli.serve import command as serve_command
from penstock.config import PLAIN_NAMES, Settings
from penstock.config import __doc__ as precedence
from penstock.core.model import QueueOptions
from penstock.journal import arrow, events
from penstock.log.model import StreamOptions
from penstock.pipeline.lake import tables
from penstock.pipeline.metrics import METRICS
from penstock.pipeline.models import decode, definitions, results
from penstock.server.dashboard import live_events
from tools.reference.text import code, field_notes, struct_rows, table

# The suffix that the Prometheus client adds to a metric's name, by type.
COUNTED = {"counter": "_total"}
KINDS_NOTES = field_notes(events.Kind)
MARKS_NOTES = field_notes(events.EventFlag)


def options() -> str:
    head = ("option", "type", "default", "meaning")
    queue = [(code(name), kind, default, note) for name, kind, default, note in struct_rows(QueueOptions)]
    stream = [(code(name), kind, default, note) for name, kind, default, note in struct_rows(StreamOptions)]
    return (
        "# Queue and stream options\n\nOptions of a queue, for `POST /queues`, `PATCH /queues/{queue}`, "
        f"`penstock queue create` and `client.create_queue`:\n\n{table(head, queue)}"
        "\nOptions of a stream, for `POST /streams`, `penstock stream create` and `client.create_stream`:\n\n"
        f"{table(head, stream)}"
    )


def settings() -> str:
    flags = {
        str(parameter.name): parameter.opts[0]
        for parameter in serve_command.params
        if isinstance(parameter, click.Option)
    }
    plain = {field: name for name, field in PLAIN_NAMES.items()}
    rows = [
        (code(name), kind, default or "host and process id", _ways(name, flags, plain), note)
        for name, kind, default, note in struct_rows(Settings)
    ]
    about = " ".join((precedence or "").split()).partition(": ")[2]
    return (
        f"# Server settings\n\nPrecedence: {about} Set each as `PENSTOCK_<NAME>` in the environment or as "
        "`name = value` in `penstock.toml` (or the file that `--config` or `PENSTOCK_CONFIG` names).\n\n"
        + table(("setting", "type", "default", "also", "meaning"), rows)
        + "\n`LISTEN_ADDR` (`host:port`), `HOST` (an address) and `PG_HOST`, `PG_PORT`, `PG_USER`, `PG_PASSWORD` "
        "and `PG_DB` are supported too.\n"
    )


def _ways(name: str, flags: dict[str, str], plain: dict[str, str]) -> str:
    return ", ".join(code(found[name]) for found in (flags, plain) if name in found)


def metrics(found: list[Metric]) -> str:
    rows = []
    for metric in sorted(found, key=lambda each: each.name):
        labels = sorted({label for sample in metric.samples for label in sample.labels} - {"le"})
        labels = labels or list(getattr(metric, "_labelnames", ()))
        name = metric.name + COUNTED.get(metric.type, "")
        rows.append((code(name), metric.type, ", ".join(map(code, labels)), metric.documentation))
    return (
        "# Metrics\n\n`GET /metrics` in the Prometheus format. Only the first 1,000 queues and streams by name have "
        "labels. [How to monitor a server](../howto/monitoring.md).\n\n"
        + table(("metric", "type", "labels", "meaning"), rows)
        + "\n`penstock pipeline run --metrics-file FILE` writes these, for the textfile collector of Prometheus' node "
        "exporter:\n\n"
        + table(
            ("metric", "type", "labels", "meaning"),
            [(code(each.name), each.kind, ", ".join(map(code, each.labels)), each.about) for each in METRICS],
        )
    )


def journal_events() -> str:
    kinds = [(code(kind.name.lower()), KINDS_NOTES[kind.name]) for kind in events.Kind]
    marks = [(code(mark.value), str(mark.name).lower(), MARKS_NOTES[str(mark.name)]) for mark in events.EventFlag]
    live = sorted({(code(name), code(kind)) for kind, name in live_events.KINDS.items()})
    return (
        "# Journal events\n\nRead them with `GET /journal/events`, `penstock journal tail` or Spark's "
        '`format("penstock")`.\n\n'
        + table(("kind", "meaning"), kinds)
        + "\nEach event is a row with these columns:\n\n"
        + _columns(arrow.SCHEMA)
        + "\n`marks` is a sum of:\n\n"
        + table(("value", "mark", "meaning"), marks)
        + "\nTheir names over `WS /ws/dashboard`:\n\n"
        + table(("event", "kind in the journal"), live)
        + "\nIn addition, `WS /ws/dashboard` sends `queue.created`, and `queue.depth` at intervals.\n"
    )


def lake() -> str:
    parts = [f"# Lake tables\n\n{inspect.cleandoc(tables.__doc__ or '')}\n"]
    own = {found.name: found for found in (definitions.DEFINITIONS, results.EXPECTATIONS)}
    for found in (tables.TABLES | tables.LIVE | own).values():
        keys = ", ".join(map(code, found.keys))
        parts.append(f"\n## {found.name}\n\n{found.about[0].upper()}{found.about[1:]}. Key: {keys}.\n\n")
        parts.append(f"{found.note}\n\n" if found.note else "")
        parts.append(_columns(found.schema))
    parts.append(
        "\n## model.NAME\n\nOne row per message whose body fits the schema of a [typed model](../howto/models.md). "
        "It has these columns, and one for each property of the schema:\n\n"
        + _columns(decode.ENVELOPE)
        + "\n## model.NAME_quarantine\n\nOne row per message whose body does not fit. Key: `offset`, `number`.\n\n"
        + _columns(decode.QUARANTINE)
    )
    return "".join(parts)


def _columns(schema: Any) -> str:
    rows = [
        (code(field.name), str(field.type), (field.metadata or {}).get(b"comment", b"").decode()) for field in schema
    ]
    return table(("column", "type", "meaning"), rows)
