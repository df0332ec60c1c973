"""Draws the results as one figure: a panel for each backlog and batch, and one for the churn."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from lib.figure import short
from lib.report import unique
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from .systems import BY_KEY

Row = dict[str, Any]
COLOURS = {
    "penstock": "#d1495b",
    "penstock-journal": "#ec9aa4",
    "pgmq": "#2e6f95",
    "pgqueuer": "#7fb2d0",
    "procrastinate": "#b8a36a",
    "awa": "#ddcfa3",
    "oban": "#8a7a46",
    "pgboss": "#5b8c5a",
    "graphile": "#a9cba4",
}


def draw(results: dict[str, Any], path: Path) -> None:
    rows, churned = results.get("compare", []), results.get("churn", [])
    cells = list(product(unique(rows, "backlog"), unique(rows, "batch"))) if rows else []
    count = len(cells) + bool(churned)
    if not count:
        return
    columns = min(2, count)
    figure, grid = plt.subplots(-(-count // columns), columns, figsize=(7.2 * columns, 8.4), squeeze=False)
    panels = list(grid.flat)
    for axes, (backlog, batch) in zip(panels, cells, strict=False):
        bars(axes, [row for row in rows if (row["backlog"], row["batch"]) == (backlog, batch)])
        waiting = f"{backlog:,} waiting" if backlog else "nothing waiting"
        title(axes, f"Push + lease + ack, batch {batch}, {waiting}: messages per second")
    if cells:
        panels[0].legend(fontsize=7.5, frameon=False, loc="upper left")
    if churned:
        lines(panels[len(cells)], churned)
        title(panels[len(cells)], "Messages per second, by number of messages so far")
    for axes in panels[count:]:
        axes.set_visible(False)
    figure.tight_layout(h_pad=2.5, w_pad=2.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, fontweight="bold", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))


def bars(axes: Axes, rows: list[Row]) -> None:
    groups, keys = unique(rows, "clients"), unique(rows, "system")
    width = 0.84 / max(len(keys), 1)
    for index, key in enumerate(keys):
        heights = {row["clients"]: row["median"] or 0 for row in rows if row["system"] == key}
        places = [place + (index - (len(keys) - 1) / 2) * width for place in range(len(groups))]
        values = [heights.get(group, 0) for group in groups]
        drawn = axes.bar(places, values, width * 0.92, color=COLOURS[key], label=BY_KEY[key].label)
        axes.bar_label(drawn, [short(value) for value in values], fontsize=6.5, padding=1)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xticks(range(len(groups)), ["1 client" if group == 1 else f"{group} clients" for group in groups])


def lines(axes: Axes, rows: list[Row]) -> None:
    for row in rows:
        passed = [row["messages"] * (tenth + 1) / 10 for tenth in range(10)]
        name = BY_KEY[row["system"]].label + (", a transaction held open" if row["held"] else "")
        axes.plot(
            passed, row["tenths"], color=COLOURS[row["system"]], linestyle="--" if row["held"] else "-", label=name
        )
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.legend(fontsize=7.5, frameon=False)
