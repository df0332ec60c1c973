"""The comparison as one figure: a panel for each batch and operation, bars by number of clients."""

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
COLOURS = {
    "penstock": "#d1495b",
    "penstock-sdk": "#ec9aa4",
    "rabbitmq": "#2e6f95",
    "nats": "#7fb2d0",
    "redis": "#b8a36a",
    "beanstalkd": "#ddcfa3",
}


def draw(rows: list[Row], path: Path) -> None:
    batches, operations = unique(rows, "batch"), unique(rows, "operation")
    figure, grid = plt.subplots(
        len(batches), len(operations), figsize=(5.6 * len(operations), 4.2 * len(batches)), squeeze=False
    )
    for (batch, operation), axes in zip(product(batches, operations), grid.flat, strict=True):
        panel(axes, [row for row in rows if (row["batch"], row["operation"]) == (batch, operation)])
        axes.set_title(f"{operation}, batch {batch}: messages a second", fontsize=10, fontweight="bold", loc="left")
    grid.flat[0].legend(fontsize=7.5, frameon=False, loc="upper left")
    figure.tight_layout(h_pad=2.5, w_pad=2.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


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
    axes.set_xticks(range(len(groups)), ["1 client" if group == 1 else f"{group} clients" for group in groups])
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
