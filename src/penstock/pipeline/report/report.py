"""Renders a report over a time span as one self-contained HTML file. Needs no Java."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import pyarrow.dataset as ds

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import read_table
from penstock.pipeline.lake.tables import QUEUE_ERRORS
from penstock.pipeline.report.plots import NOTHING, STYLE, duration, heatmap, stairs
from penstock.pipeline.report.summary import QueueSummary, Summary, percentiles_of, summary_of, when

ERRORS_SHOWN = 20
ERROR_LETTERS = 300
QUEUES_SHOWN = 50
_EXACT = "right within an eighth"
RATES = {"a minute": 1, "an hour": 60, "a day": 1_440}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere } h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.1rem; margin: 2.2rem 0 0 } p { margin: 0 0 .4rem }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1.2rem 0 }
@media (max-width: 40rem) { .tiles { grid-template-columns: repeat(2, 1fr) } }
.tiles div { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .8rem; font-size: 13px }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.4; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; margin-top: .4rem; overflow-wrap: normal }
td, th { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap } th { font-weight: 600; font-size: 13px } .n { text-align: right;
  font-variant-numeric: tabular-nums } td.t { white-space: normal; overflow-wrap: anywhere; min-width: 14rem }
"""


def report(lake: Lake, start: datetime | None, end: datetime | None, queue: str | None = None) -> str:
    """Return the report from `start` up to `end`, for one queue or all."""
    found = summary_of(lake, start, end, queue)
    window = found.window
    first, last = (datetime.fromtimestamp(minute * 60, UTC) for minute in (window.from_minute, window.to_minute))
    title = f"{queue or 'All queues'}, {when(first)} to {when(last)} UTC"
    waits, services = found.times("wait"), found.times("service")
    rows, cells = found.hours()
    rate, rates = _rates(found)
    parts = [
        f"<h1>{escape(queue or 'All queues')}</h1>",
        f'<p class="faint">{when(first)} to {when(last)} UTC ({_span(window.to_minute - window.from_minute)}), '
        f"in steps of {_span(window.step_minutes)}</p>",
        _tiles(found),
        _section("Throughput", f"messages {rate}", stairs(rates, window)),
        _section(
            "Depth",
            "messages held at the end of each step",
            stairs(
                {"waiting or leased": found.held("depth").tolist(), "dead letters": found.held("dead").tolist()},
                window,
                filled=True,
            ),
        ),
        _section("Wait", f"from push to first lease; {_EXACT}", stairs(_by_share(waits), window, times=True)),
        _section("Service", f"from last lease to ack; {_EXACT}", stairs(_by_share(services), window, times=True)),
        _section("Wait by hour", "p95 of each hour, UTC", heatmap(cells, rows)),
        _section(
            "Retries",
            "in each step: failed attempts (nacked), expired leases (lapsed) and dead-lettered messages (dead)",
            stairs({name: found.counts[name].tolist() for name in ("nacked", "lapsed", "dead")}, window),
        ),
        _section("Queues", "in this span", _queues(found.queues)),
        _section("Top errors", "by whole hours", _errors(lake, first, last, queue)),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    view = '<meta name="viewport" content="width=device-width">'
    return f"{head}{view}<style>{STYLE}{_STYLE}</style>{''.join(parts)}</html>\n"


def _rates(found: Summary) -> tuple[str, dict[str, list[float]]]:
    """Return rates per minute, or per hour or day if they are below one."""
    rates = {name: found.a_minute(name) for name in ("pushed", "acked")}
    most = max(max(each) for each in rates.values())
    unit, minutes = next((each for each in RATES.items() if most * each[1] >= 1), ("a minute", 1))
    return unit, {name: [value * minutes for value in each] for name, each in rates.items()}


def _by_share(times: Sequence[dict[str, int | None]]) -> dict[str, list[float | None]]:
    return {share: [each[share] for each in times] for share in ("p50", "p95", "p99")}


def _tiles(found: Summary) -> str:
    sums = {name: int(counts.sum()) for name, counts in found.counts.items()}
    failed = sums["nacked"] + sums["lapsed"]
    tries = failed + sums["acked"]
    tiles = {
        "pushed": f"{sums['pushed']:,}",
        "acked": f"{sums['acked']:,}",
        f"failed attempts ({failed / tries:.1%})" if tries else "failed attempts": f"{failed:,}",
        "dead": f"{sums['dead']:,}",
        "expired": f"{sums['expired']:,}",
        "waiting or leased at the end": f"{found.held('depth')[-1]:,}",
        "wait, p50 and p95": _two(found.all_times("wait")),
        "service, p50 and p95": _two(found.all_times("service")),
    }
    return '<div class="tiles">' + "".join(f"<div><b>{text}</b>{name}</div>" for name, text in tiles.items()) + "</div>"


def _two(times: dict[str, int | None]) -> str:
    return " / ".join("–" if times[share] is None else duration(times[share] or 0) for share in ("p50", "p95"))


def _queues(queues: dict[str, QueueSummary]) -> str:
    names = ("pushed", "acked", "nacked", "lapsed", "dead", "expired")
    active = [each for each in queues.items() if each[1].depth or any(each[1].counts.values())]
    ranked = sorted(active, key=lambda each: (-each[1].counts["pushed"], -each[1].depth, each[0]))
    rows = [
        [
            name,
            *(each.counts[count] for count in names),
            each.depth,
            *(_Number(_share(each, latency)) for latency in ("wait", "service")),
        ]
        for name, each in ranked[:QUEUES_SHOWN]
    ]
    more = len(ranked) - len(rows)
    note = f'<p class="faint">and {more:,} more, with fewer messages</p>' if more else ""
    return _table(("queue", *names, "held at the end", "wait p95", "service p95"), rows) + note


def _share(of_queue: QueueSummary, latency: str) -> str:
    value = percentiles_of(of_queue.times[latency])["p95"] if latency in of_queue.times else None
    return "–" if value is None else duration(value)


def _errors(lake: Lake, first: datetime, last: datetime, queue: str | None) -> str:
    inside = (ds.field("hour") >= first.replace(minute=0)) & (ds.field("hour") < last)
    errors = read_table(lake[QUEUE_ERRORS].refresh().dataset(hour=first.replace(minute=0)), where=inside)
    found = errors.group_by(["queue", "pattern"]).aggregate(
        [("nacked", "sum"), ("lapsed", "sum"), ("dead", "sum"), ("last_at", "max"), ("sample", "min")]
    )
    mine = [row for row in found.to_pylist() if queue in (None, row["queue"])]
    rows = sorted(mine, key=lambda row: -(row["nacked_sum"] + row["lapsed_sum"]))[:ERRORS_SHOWN]
    cells = [
        [
            row["queue"],
            _Text(row["sample_min"] or "(no text)"),
            row["nacked_sum"] + row["lapsed_sum"],
            row["dead_sum"],
            when(row["last_at_max"]),
        ]
        for row in rows
    ]
    return _table(("queue", "for example", "times", "dead", "last, UTC"), cells)


def _section(title: str, unit: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(unit)}</p>{content}'


class _Text(str):
    """Text that may be long and wrap."""


class _Number(str):
    """A number with its unit."""


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return NOTHING

    def cell(value: Any) -> str:
        if isinstance(value, _Text):
            short = value if len(value) <= ERROR_LETTERS else value[:ERROR_LETTERS] + "…"
            return f'<td class="t">{escape(short)}</td>'
        text = f"{value:,}" if isinstance(value, int) else escape(value)
        return f'<td class="n">{text}</td>' if isinstance(value, int | _Number) else f"<td>{text}</td>"

    head = "".join(
        f"<th{' class=n' if isinstance(value, int | _Number) else ''}>{escape(name)}</th>"
        for name, value in zip(headings, rows[0], strict=True)
    )
    body = "".join("<tr>" + "".join(map(cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _span(minutes: int) -> str:
    return duration(minutes * 60_000)
