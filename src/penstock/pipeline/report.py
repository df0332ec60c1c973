"""A page that tells what happened in a span of time: one HTML file with nothing outside it. Needs no Java."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.pipeline.lake import Lake, LakeTable
from penstock.pipeline.plots import bands, heatmap, lines
from penstock.pipeline.tables import COUNTS, QUEUE_ERRORS, QUEUE_MINUTES

POINTS_MAX = 240
ERRORS_SHOWN = 20
QUEUES_SHOWN = 50
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #8a97a5; --line: #dde3ea }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe4ee; --paper: #12181f; --line: #2b3744 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } .faint { color: var(--faint) }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums } svg { width: 100%; height: auto } code { overflow-wrap: anywhere }
"""


def report(lake: Lake, start: datetime | None, end: datetime | None, queue: str | None = None) -> str:
    """From `start` up to `end`, of one queue or of all."""
    minutes = _span(lake[QUEUE_MINUTES], "minute", start, end, queue)
    if minutes.num_rows == 0:
        raise InvalidInput("nothing happened in that span", field="from", hint="`penstock pipeline status`")
    hour = None if start is None else start.replace(minute=0, second=0, microsecond=0)
    errors = _span(lake[QUEUE_ERRORS], "hour", hour, end, queue)
    first, last = pc.min(minutes["minute"]).as_py(), pc.max(minutes["minute"]).as_py()
    title = f"{queue or 'All queues'}, {_when(first)} to {_when(last)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{_sentence(minutes)}</p>',
        _section("Messages a minute", lines(_by_bucket(minutes, first, last, ("pushed", "acked"), "mean"))),
        _section("Depth", bands(_depths(minutes, first, last))),
        _section("Wait, ms", lines(_by_bucket(minutes, first, last, _of("wait"), "max"), log=True)),
        _section("Service, ms", lines(_by_bucket(minutes, first, last, _of("service"), "max"), log=True)),
        _section("Wait by hour of the day (p95, ms)", heatmap(_hours(minutes))),
        _section("Tried again", lines(_by_bucket(minutes, first, last, ("nacked", "lapsed", "dead"), "sum"))),
        _section("Queues", _queues(minutes)),
        _section("What fails", _errors(errors)),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    view = '<meta name="viewport" content="width=device-width">'
    return f"{head}{view}<style>{_STYLE}</style>{''.join(parts)}</html>\n"


def _of(latency: str) -> tuple[str, ...]:
    return tuple(f"{latency}_{share}_ms" for share in ("p50", "p95", "p99"))


def _span(table: LakeTable, column: str, start: datetime | None, end: datetime | None, queue: str | None) -> pa.Table:
    wanted: list[tuple[str, str, Any]] = [("queue", "=", queue)] if queue is not None else []
    wanted += [(column, ">=", start)] if start is not None else []
    wanted += [(column, "<", end)] if end is not None else []
    columns = [name for name in table.table.schema.names if not name.endswith("_sketch")]
    dataset = table.refresh().delta.to_pyarrow_dataset()
    chosen = None
    for name, sign, value in wanted:
        field = pc.field(name)
        fits = {"=": field.__eq__, ">=": field.__ge__, "<": field.__lt__}[sign](value)
        chosen = fits if chosen is None else chosen & fits
    return dataset.to_table(columns=columns, filter=chosen)


def _buckets(minutes: pa.Table, first: datetime, last: datetime) -> tuple[pa.Table, int]:
    """With a column that says, in seconds since 1970, in which stretch of time a row lies."""
    seconds = max(60, int((last - first).total_seconds() / POINTS_MAX) // 60 * 60 or 60)
    epoch = pc.divide(pc.cast(minutes["minute"], pa.int64()), 1_000_000)
    bucket = pc.multiply(pc.divide(epoch, seconds), seconds)
    return minutes.append_column("bucket", bucket), seconds


Points = dict[str, list[tuple[float, float]]]


def _by_bucket(minutes: pa.Table, first: datetime, last: datetime, names: Sequence[str], how: str) -> Points:
    rows, seconds = _buckets(minutes, first, last)
    by_minute = how == "mean"
    found = rows.group_by("bucket").aggregate([(name, "sum" if by_minute else how) for name in names])
    found = found.sort_by("bucket")
    share = 60 / seconds if by_minute else 1
    suffix = "sum" if by_minute else how
    at = found["bucket"].to_pylist()
    return {
        name: [
            (when, value * share)
            for when, value in zip(at, found[f"{name}_{suffix}"].to_pylist(), strict=True)
            if value is not None
        ]
        for name in names
    }


def _depths(minutes: pa.Table, first: datetime, last: datetime) -> Points:
    """At the end of each stretch; a queue in which nothing happened keeps what it held."""
    rows, _ = _buckets(minutes.sort_by("minute"), first, last)
    held: dict[str, int] = {}
    now = 0
    total: dict[float, float] = {}
    for queue, bucket, depth in zip(*(rows[name].to_pylist() for name in ("queue", "bucket", "depth")), strict=True):
        now += depth - held.get(queue, 0)
        held[queue] = depth
        total[bucket] = now
    return {"depth": list(total.items())}


def _hours(minutes: pa.Table) -> dict[tuple[str, int], float]:
    cells: dict[tuple[str, int], float] = {}
    for minute, value in zip(minutes["minute"].to_pylist(), minutes["wait_p95_ms"].to_pylist(), strict=True):
        if value is not None:
            key = (minute.strftime("%Y-%m-%d"), minute.hour)
            cells[key] = max(cells.get(key, 0), value)
    return cells


def _queues(minutes: pa.Table) -> str:
    names = ("pushed", "acked", "nacked", "lapsed", "dead", "expired")
    found = minutes.group_by("queue").aggregate([(name, "sum") for name in names])
    rows = found.sort_by([("pushed_sum", "descending")]).slice(0, QUEUES_SHOWN).to_pylist()
    return _table(("queue", *names), [[row["queue"], *(row[f"{name}_sum"] for name in names)] for row in rows])


def _errors(errors: pa.Table) -> str:
    found = errors.group_by(["queue", "pattern"]).aggregate(
        [("nacked", "sum"), ("lapsed", "sum"), ("dead", "sum"), ("last_at", "max"), ("sample", "min")]
    )
    rows = sorted(found.to_pylist(), key=lambda row: -(row["nacked_sum"] + row["lapsed_sum"]))[:ERRORS_SHOWN]
    if not rows:
        return '<p class="faint">nothing</p>'
    cells = [
        [row["queue"], row["sample_min"] or "(no text)", row["nacked_sum"] + row["lapsed_sum"], row["dead_sum"]]
        for row in rows
    ]
    return _table(("queue", "for example", "times", "dead"), cells)


def _sentence(minutes: pa.Table) -> str:
    sums = {name: pc.sum(minutes[name]).as_py() or 0 for name in COUNTS}
    return (
        f"{sums['pushed']:,} pushed, {sums['acked']:,} acked, {sums['dead']:,} dead, {sums['expired']:,} expired; "
        f"{sums['nacked'] + sums['lapsed']:,} attempts failed."
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        return f"<td class=n>{value:,}</td>" if isinstance(value, int) else f"<td>{escape(value)}</td>"

    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join("<tr>" + "".join(map(cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _when(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%MZ")
