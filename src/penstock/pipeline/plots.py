"""Plots as SVG, by hand: a report must not need anything that is not in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 220, 60, 24, 18
COLOURS = ("#2f7ed8", "#e0862b", "#c94f4f", "#3d9a5f")
DAYS_MAX = 62

Points = Mapping[str, Sequence[tuple[float, float]]]


def lines(series: Points, *, log: bool = False) -> str:
    return _plot(series, log=log, filled=False)


def bands(series: Points) -> str:
    return _plot(series, log=False, filled=True)


def _plot(series: Points, *, log: bool, filled: bool) -> str:
    points = [point for each in series.values() for point in each]
    if not points:
        return '<p class="faint">nothing</p>'
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = max(1.0, max(value for _, value in points))

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT) * (at - first) / ((last - first) or 1)

    def y(value: float) -> float:
        share = math.log1p(max(0.0, value)) / math.log1p(top) if log else max(0.0, value) / top
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    parts = []
    for share in (0.0, 0.5, 1.0):
        value = math.expm1(math.log1p(top) * share) if log else top * share
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="var(--line)"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end" {_TEXT}>{_short(value)}</text>'
        )
    for at, anchor in ((first, "start"), (last, "end")):
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}" {_TEXT}>{_time(at)}</text>')
    for number, (name, each) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in each)
        if filled and each:
            base = f"{x(each[0][0]):.1f},{y(0):.1f} {path} {x(each[-1][0]):.1f},{y(0):.1f}"
            parts.append(f'<polygon points="{base}" fill="{colour}" opacity=".25"/>')
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        label = escape(name.removesuffix("_ms").replace("_", " "))
        parts.append(f'<text x="{LEFT + 90 * number}" y="12" fill="{colour}" font-size="12">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def heatmap(cells: Mapping[tuple[str, int], float]) -> str:
    """By day and hour; the darker, the greater."""
    if not cells:
        return '<p class="faint">nothing</p>'
    days = sorted({day for day, _ in cells})[-DAYS_MAX:]
    top = math.log1p(max(cells.values())) or 1.0
    wide, high = (WIDTH - 90) / 24, 16
    parts = []
    for row, day in enumerate(days):
        parts.append(f'<text x="0" y="{row * high + 12}" {_TEXT}>{escape(day)}</text>')
        for hour in range(24):
            value = cells.get((day, hour))
            if value is not None:
                shade = 0.08 + 0.92 * math.log1p(value) / top
                parts.append(
                    f'<rect x="{90 + hour * wide:.1f}" y="{row * high}" width="{wide - 2:.1f}" height="{high - 2}" '
                    f'fill="{COLOURS[2]}" opacity="{shade:.2f}"><title>{day} {hour:02}h: {value:,.0f}</title></rect>'
                )
    return f'<svg viewBox="0 0 {WIDTH} {len(days) * high + 4}" role="img">{"".join(parts)}</svg>'


_TEXT = 'fill="var(--faint)" font-size="11"'


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")
