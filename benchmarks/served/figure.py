"""Draws the comparison as one figure: a panel for each batch and operation and for the worker loop, bars by clients."""

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

from .report import BY_KEY

Row = dict[str, Any]
COLUMNS = 3
COLOURS = {
    "penstock": "#d1495b",
    "penstock-sdk": "#ec9aa4",
    "penstock-threads": "#f4c6cb",
    "rabbitmq": "#2e6f95",
    "nats": "#7fb2d0",
    "redis": "#b8a36a",
    "valkey": "#8a7a46",
    "beanstalkd": "#ddcfa3",
}


def draw(rows: list[Row], loops: list[Row], path: Path) -> None:
    panels = [
        (f"{operation}, batch {batch}", [row for row in rows if (row["batch"], row["operation"]) == (batch, operation)])
        for batch, operation in product(unique(rows, "batch"), unique(rows, "operation"))
    ]
    if loops:
        panels.append(("worker loop, one by one", loops))
    # The last panel contains the legend.
    lines = -(-(len(panels) + 1) // COLUMNS)
    figure, grid = plt.subplots(lines, COLUMNS, figsize=(5.6 * COLUMNS, 4.2 * lines), squeeze=False)
    for (name, part), axes in zip(panels, grid.flat, strict=False):
        panel(axes, part)
        axes.set_title(f"{name}: messages per second", fontsize=10, fontweight="bold", loc="left")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    handles = dict(zip(*reversed(grid.flat[0].get_legend_handles_labels()), strict=True))
    grid.flat[len(panels)].legend(handles.values(), handles.keys(), fontsize=10, frameon=False, loc="center left")
    figure.tight_layout(h_pad=2.5, w_pad=2.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def named(operation: str, count: int) -> str:
    return f"{count} {'worker' if operation == 'worker loop' else 'client'}{'s' if count > 1 else ''}"


def panel(axes: Axes, rows: list[Row]) -> None:
    groups, keys = unique(rows, "clients"), unique(rows, "system")
    width = 0.84 / max(len(keys), 1)
    for index, key in enumerate(keys):
        heights = {row["clients"]: row["median"] or 0 for row in rows if row["system"] == key}
        places = [place + (index - (len(keys) - 1) / 2) * width for place in range(len(groups))]
        values = [heights.get(group, 0) for group in groups]
        bars = axes.bar(places, values, width * 0.92, color=COLOURS[key], label=BY_KEY[key].label)
        axes.bar_label(bars, [short(value) for value in values], fontsize=6.5, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=min([100.0, *(row["median"] / 2 for row in rows if row["median"])]))
    axes.margins(y=0.2)
    axes.set_xticks(range(len(groups)), [named(rows[0]["operation"], group) for group in groups])
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
