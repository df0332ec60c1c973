"""Draws the results as one figure: cycles by batch, pop + ack by backlog, and the time of a pop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from .plan import SYSTEMS
from .report import BY_KEY, unique

Row = dict[str, Any]
Panel = Callable[[Axes], None]
COLOURS = {
    "penstock": "#d1495b",
    "litequeue": "#2e6f95",
    "persist-queue": "#7fb2d0",
    "huey": "#b8a36a",
    "diskcache": "#ddcfa3",
    "raw-file": "#8c8c8c",
    "raw-sqlite": "#c4c4c4",
}


def draw(results: dict[str, Any], path: Path) -> None:
    panels: list[Panel] = []
    rows = results.get("throughput", [])
    for threads in unique(rows, "threads"):
        part = [
            row for row in rows if (row["operation"], row["durability"], row["threads"]) == ("cycle", "full", threads)
        ]
        panels.append(partial(cycles, rows=part, threads=threads))
    if results.get("backlog"):
        panels.append(partial(waiting, rows=results["backlog"]))
    if results.get("state"):
        panels.append(partial(costs, rows=results["state"]))
    if panels:
        _draw_panels(panels, path)


def _draw_panels(panels: list[Panel], path: Path) -> None:
    columns = min(2, len(panels))
    lines = (len(panels) + 1) // 2
    figure, grid = plt.subplots(lines, columns, figsize=(7.2 * columns, 4.6 * lines), squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.tight_layout(h_pad=2.5, w_pad=2.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def name(key: str) -> str:
    system = BY_KEY[key]
    return f"{system.label} (no ack)" if system.kind == "no ack" else system.label


def short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.95 * size:
            return f"{value / size:.{0 if value >= 9.5 * size else 1}f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def cycles(axes: Axes, rows: list[Row], threads: int) -> None:
    batches = unique(rows, "batch")
    keys = [system.key for system in SYSTEMS if any(row["system"] == system.key for row in rows)]
    width = 0.84 / max(len(keys), 1)
    for index, key in enumerate(keys):
        heights = {row["batch"]: row["median"] or 0 for row in rows if row["system"] == key}
        places = [place + (index - (len(keys) - 1) / 2) * width for place in range(len(batches))]
        bars = axes.bar(
            places, [heights[batch] for batch in batches], width * 0.92, color=COLOURS[key], label=name(key)
        )
        axes.bar_label(bars, [short(heights[batch]) for batch in batches], fontsize=6.5, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=100)
    axes.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    plural = "1 thread" if threads == 1 else f"{threads} threads"
    axes.set_title(
        f"Push + pop + ack, messages per second (fsync per commit, {plural})",
        fontsize=10,
        fontweight="bold",
        loc="left",
    )
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")


def waiting(axes: Axes, rows: list[Row]) -> None:
    batches = unique(rows, "batch")
    batch = 10 if 10 in batches else batches[0]
    for key in unique(rows, "system"):
        points = sorted(
            (row["backlog"], row["median"])
            for row in rows
            if (row["system"], row["batch"]) == (key, batch) and row["median"]
        )
        ours = BY_KEY[key].kind == "penstock"
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=4,
            color=COLOURS[key],
            linewidth=2.5 if ours else 1.5,
            label=name(key),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel("messages waiting", fontsize=9)
    axes.set_title(
        f"Pop + ack in batches of {batch}, messages per second (fsync per commit)",
        fontsize=10,
        fontweight="bold",
        loc="left",
    )
    axes.legend(fontsize=7.5, frameon=False)


def costs(axes: Axes, rows: list[Row]) -> None:
    """Draw the medians as bars, and the p99 as a tick above each bar."""
    groups = list(dict.fromkeys((row["batch"], row["durability"]) for row in rows))
    queues = unique(rows, "queue")
    for index, queue in enumerate(queues):
        part = {(row["batch"], row["durability"]): row for row in rows if row["queue"] == queue}
        places = [place + (index - (len(queues) - 1) / 2) * 0.27 for place in range(len(groups))]
        medians = [part[group]["median"] for group in groups]
        bars = axes.bar(places, medians, 0.25, color=("#f3c6cc", "#d1495b", "#7a1f2d")[index], label=queue)
        axes.bar_label(bars, [f"{value:.0f}" for value in medians], fontsize=7, padding=1)
        axes.scatter(places, [part[group]["p99"] for group in groups], marker="_", s=90, color="#444444")
    axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), [f"pop of {batch}\n{durability}" for batch, durability in groups])
    axes.set_title("Time of a Penstock pop, µs (bar: median, tick: p99)", fontsize=10, fontweight="bold", loc="left")
    axes.margins(y=0.3)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
