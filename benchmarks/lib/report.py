"""Formats the results as JSON and as Markdown tables."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from .plan import SYSTEMS
from .systems import System

Row = dict[str, Any]
BY_KEY: dict[str, type[System]] = {system.key: system for system in SYSTEMS}
SYNC_NAME = {"full": "FULL (fsync per commit)", "relaxed": "NORMAL (no fsync per commit)"}
POP_RATIO_MOST, TARGET_WAITING = 1.5, 5_000_000
# With a backlog alone, and nothing delayed, leased or dead beside it.
BACKLOG_RATIO_MAX = 1.2
MEMORY_MB_MOST, TARGET_PUSHED = 150, 1_000_000


def as_json(results: dict[str, Any]) -> str:
    """Write one row per line, so that two runs can be compared with diff."""
    parts = []
    for name, value in results.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value)
            parts.append(f"{json.dumps(name)}: [\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def as_markdown(results: dict[str, Any]) -> str:
    parts = ["# Embedded queue: results", about(results)]
    if "throughput" in results:
        parts += throughput(results["throughput"])
    if "backlog" in results:
        parts += backlog(results["backlog"])
    if "state" in results:
        parts += state(results["state"])
    if "memory" in results:
        parts += memory(results["memory"])
    parts += problems([*results.get("throughput", []), *results.get("backlog", [])])
    return "\n\n".join(parts) + "\n"


def about(results: dict[str, Any]) -> str:
    machine, settings = results["machine"], results["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return (
        f"{machine['date']}, {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['filesystem']}, Python {machine['python']}, SQLite {machine['sqlite']}; {versions}. "
        f"Load average at the start {machine['load_before']}. 200-byte messages. "
        f"Medians of {settings['rounds']} rounds of {settings['round_s']} s, in which the systems take turns."
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


def rate(row: Row | None) -> str:
    if row is None:
        return "–"
    return "failed" if row["median"] is None else f"{row['median']:,.0f}"


def label(key: str) -> str:
    system = BY_KEY[key]
    marks = {"penstock": "**{}**", "acks": "{}", "no ack": "{} (no ack)", "limit": "_{}_"}
    return marks[system.kind].format(system.label)


def ratio(rows: list[Row]) -> float | None:
    """Return the ratio of Penstock to the best peer with acks in one cell."""
    rates = {row["system"]: row["median"] for row in rows if row["median"]}
    peers = [value for key, value in rates.items() if BY_KEY[key].kind == "acks"]
    return rates["penstock"] / max(peers) if peers and "penstock" in rates else None


def times(value: float | None) -> str:
    return "–" if value is None else f"**{value:.1f}×**"


def verdict(met: bool, complete: bool) -> str:
    if not complete:
        return "is not checked at this smaller size"
    return "is met" if met else "is MISSED"


def unique(rows: list[Row], field: str) -> list[Any]:
    return list(dict.fromkeys(row[field] for row in rows))


def throughput(rows: list[Row]) -> list[str]:
    parts = ["## Messages per second with a small backlog"]
    for durability, threads in product(unique(rows, "durability"), unique(rows, "threads")):
        part = [row for row in rows if (row["durability"], row["threads"]) == (durability, threads)]
        plural = "1 thread" if threads == 1 else f"{threads} threads"
        parts += [f"### synchronous = {SYNC_NAME[durability]}, {plural}", throughput_table(part)]
    forms = [f"- {label(key)}: {BY_KEY[key].batch_form}." for key in unique(rows, "system")]
    return [*parts, "Calls used for a batch (batch 1 is the single call):", "\n".join(forms)]


def throughput_table(rows: list[Row]) -> str:
    columns = list(product(unique(rows, "operation"), unique(rows, "batch")))
    found = {(row["system"], row["operation"], row["batch"]): row for row in rows}
    keys = unique(rows, "system")
    lines = [[label(key), *(rate(found.get((key, *column))) for column in columns), form_mark(key)] for key in keys]
    ratios = [ratio([found[(key, *column)] for key in keys]) for column in columns]
    lines.append(["Penstock / best peer with acks", *(times(value) for value in ratios), ""])
    return table(["msg/s", *(f"{operation} ×{batch}" for operation, batch in columns), "batch"], lines)


def form_mark(key: str) -> str:
    form = BY_KEY[key].batch_form
    if form == System.batch_form:
        return "loop of single calls"
    return "pop is a loop" if "in a loop" in form else "yes"


def backlog(rows: list[Row]) -> list[str]:
    sizes = sorted(unique(rows, "backlog"))
    parts = ["## Pop + ack by backlog (FULL, 1 thread, msg/s)"]
    for batch in unique(rows, "batch"):
        found = {(row["system"], row["backlog"]): row for row in rows if row["batch"] == batch}
        keys = unique(rows, "system")
        lines = [[label(key), *(rate(found.get((key, size))) for size in sizes)] for key in keys]
        cells = [[row for key in keys if (row := found.get((key, size)))] for size in sizes]
        lines.append(["Penstock / best peer with acks", *(times(ratio(cell)) for cell in cells)])
        parts.append(table([f"batch {batch}", *(f"{size:,} waiting" for size in sizes)], lines))
    return parts


def state(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        cost = f"{row['median']:,.0f}", f"{row['p99']:,.0f}", f"{pop_ratio(row, rows):.2f}×"
        lines.append([f"pop of {row['batch']}, {row['durability']}: {row['queue']}", *cost])
    worst = max(pop_ratio(row, rows) for row in rows)
    complete = max(row["waiting"] for row in rows) >= TARGET_WAITING
    backlog = max(pop_ratio(row, rows) for row in rows if row["queue"].endswith(" waiting"))
    return [
        "## Time of a pop by contents of the file (µs)",
        table(["Penstock", "median", "p99", "median relative to the small queue"], lines),
        f"With a backlog alone the largest ratio is {backlog:.2f}×; the target of at most {BACKLOG_RATIO_MAX}× "
        f"{verdict(backlog <= BACKLOG_RATIO_MAX, complete)}. With all contents it is {worst:.2f}×; "
        f"the target of at most {POP_RATIO_MOST}× {verdict(worst <= POP_RATIO_MOST, complete)}.",
    ]


def pop_ratio(row: Row, rows: list[Row]) -> float:
    same = [other for other in rows if (other["batch"], other["durability"]) == (row["batch"], row["durability"])]
    return float(row["median"] / same[0]["median"])


def memory(row: Row) -> list[str]:
    peak = row["rss_peak_bytes"] / 1e6
    judged = verdict(peak < MEMORY_MB_MOST, row["messages"] >= TARGET_PUSHED)
    names = ("imported", "pushed", "popped", "peak")
    cells = [f"{row[f'rss_{name}_bytes'] / 1e6:,.0f}" for name in names]
    return [
        "## Memory of a fresh process (resident set, MB)",
        table(
            [
                "",
                "after import",
                f"after {row['messages']:,} pushes",
                f"after {row['popped']:,} pops",
                "peak",
            ],
            [["**Penstock**", *cells]],
        ),
        f"The target of a peak under {MEMORY_MB_MOST} MB {judged}.",
    ]


def problems(rows: list[Row]) -> list[str]:
    found = {f"- {label(row['system'])}: {row['error']}" for row in rows if "error" in row}
    return ["## Failures", "\n".join(sorted(found))] if found else []
