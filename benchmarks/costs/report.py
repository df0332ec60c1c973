"""The costs as tables and as one figure."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from lib.figure import short
from lib.report import table, unique, verdict
from matplotlib import pyplot as plt

from .plan import RATIO_MAX, WITHOUT_TARGET

Row = dict[str, Any]
AXES = {
    "clients": "clients",
    "queues": "queues",
    "payload_bytes": "payload bytes",
    "backlog": "messages waiting",
}
STORES = {"sqlite": "one server on SQLite", "postgresql": "two servers on PostgreSQL"}
COLOURS = {
    ("sqlite", 10): "#ec9aa4",
    ("sqlite", 100): "#d1495b",
    ("postgresql", 10): "#7fb2d0",
    ("postgresql", 100): "#2e6f95",
}


def settle(row: Row, first: Row | None) -> Row:
    """Add the medians, and the median of the ratios to the first cell of the axis within each round."""
    for name in ("server_us", "database_us", "per_s"):
        row[name] = round(median(each[name] for each in row["rounds"]), 2)
    row["us"] = round(median(map(cost, row["rounds"])), 2)
    pairs = zip(row["rounds"], (first or row)["rounds"], strict=True)
    row["ratio"] = round(median(cost(each) / cost(base) for each, base in pairs), 2)
    return row


def cost(measured: Row) -> float:
    return float(measured["server_us"] + measured["database_us"])


def as_markdown(results: Row) -> str:
    facts, settings, rows = results["machine"], results["settings"], results["rows"]
    parts = [
        "# Cost of a message as things grow",
        f"{facts['date']}, {facts['cores']} cores ({facts['processor']}), {facts['filesystem']}, "
        f"Python {facts['python']}, PostgreSQL {facts['postgres']}. Processor time for each message that is pushed, "
        f"leased and acked over HTTP, of the servers and the database together; default settings, journal on. "
        f"Unless it is what grows: 8 clients, 1 queue, 200 bytes, 1,000 waiting. Medians of {settings['rounds']} "
        f"rounds of {settings['round_s']} s; the ratio is that to the first row, within each round. "
        f"Load when it began {facts['load_before']}.",
    ]
    for axis in unique(rows, "axis"):
        parts += [f"## {AXES[axis].capitalize()}", axis_table([row for row in rows if row["axis"] == axis])]
    for store in unique(rows, "store"):
        judged = [row for row in rows if row["store"] == store and row["axis"] not in WITHOUT_TARGET]
        worst = max(judged, key=lambda row: row["ratio"])
        where = f"{worst['value']:,} {AXES[worst['axis']]}, batch {worst['batch']}"
        parts.append(
            f"{STORES[store].capitalize()}: the largest ratio is {worst['ratio']:.2f}× ({where}); the target, at most "
            f"{RATIO_MAX}× except for the payload, {verdict(worst['ratio'] <= RATIO_MAX, settings['complete'])}."
        )
    return "\n\n".join(parts) + "\n"


def axis_table(rows: list[Row]) -> str:
    columns = [(store, batch) for store in unique(rows, "store") for batch in unique(rows, "batch")]
    found = {(row["store"], row["batch"], row["value"]): row for row in rows}
    lines = []
    for value in unique(rows, "value"):
        cells = [found[(*column, value)] for column in columns]
        lines.append([f"{value:,}", *(shown(cell) for cell in cells)])
    heads = [f"{STORES[store]}, batch {batch}" for store, batch in columns]
    return table([f"µs per message (msg/s), by {AXES[rows[0]['axis']]}", *heads], lines)


def shown(row: Row) -> str:
    parts = f" = {row['server_us']:.1f} + {row['database_us']:.1f}" if row["database_us"] else ""
    return f"**{row['ratio']:.2f}×** {row['us']:.1f}{parts} ({row['per_s']:,.0f})"


def draw(rows: list[Row], path: Path) -> None:
    axes_names = unique(rows, "axis")
    figure, grid = plt.subplots(1, len(axes_names), figsize=(4 * len(axes_names), 3.6), squeeze=False)
    for name, axes in zip(axes_names, grid.flat, strict=True):
        part = [row for row in rows if row["axis"] == name]
        for (store, batch), colour in COLOURS.items():
            line = [row for row in part if (row["store"], row["batch"]) == (store, batch)]
            label = f"{STORES[store]}, batch {batch}"
            axes.plot([row["value"] for row in line], [row["us"] for row in line], "o-", color=colour, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(AXES[name])
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.spines[["top", "right"]].set_visible(False)
    grid.flat[0].set_ylabel("processor time, µs per message")
    grid.flat[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
