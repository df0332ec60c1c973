"""Draws plots without a library, because a report must be self-contained.

Lines are SVG that stretches to any width; labels are HTML text, which does not stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from penstock.core.model import Window

Points = Mapping[str, Sequence[tuple[float, float]]]
# One value per step of a window, by name; None for a gap.
Steps = Mapping[str, Sequence[float | None]]
Lines = Mapping[str, Sequence[Sequence[tuple[float, float]]]]

NOTHING = '<p class="faint">nothing</p>'
STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #5f6e7d; --line: #dde3ea;
  --c0: #2467c4; --c1: #b85c00; --c2: #c0342f; --c3: #2c7d4b }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe4ee; --paper: #12181f; --faint: #93a1b0; --line: #2b3744;
  --c0: #6aa5f2; --c1: #eb9d4a; --c2: #f0776f; --c3: #5cc084 } }
.faint, .xs, .ys, .grid { color: var(--faint) } .xs, .ys, .grid { font-size: 12px; line-height: 16px }
.plot { margin: 0; padding: 8px 20px 22px 64px } .frame { position: relative; height: 180px }
.plot svg { width: 100%; height: 100%; display: block; overflow: visible }
.ys span { position: absolute; right: 100%; margin: 0 8px -8px 0; white-space: nowrap }
.xs span { position: absolute; top: 100%; margin-top: 4px; transform: translateX(-50%); white-space: nowrap }
.key { display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: 13px } .key i { display: inline-block; width: 10px;
  height: 10px; border-radius: 2px; margin-right: 6px; background: var(--c) } .key b { font-weight: 600 }
.grid { display: grid; grid-template-columns: max-content repeat(24, minmax(4px, 1fr)); gap: 2px; margin: 8px 0 }
.grid u { height: 16px; border-radius: 2px; background: var(--line); opacity: .5 } .grid b { height: 16px;
  border-radius: 2px; background: var(--c2) } .grid span { padding-right: 8px; white-space: nowrap }
.grid em { grid-column: span 3; font-style: normal; white-space: nowrap; overflow: hidden }
@media (max-width: 40rem) { .plot { padding-left: 52px } .xs span:nth-child(even) { display: none } }
"""
_WIDE, _HIGH = 1000, 100
_TICKS, _TIMES = 4, 8
# Minimum distance of two ticks as a share of the height.
_LOG_GAP = 0.1
_DURATIONS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LOG_TICKS = [1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, *(8.64e7 * 10**power for power in range(6))]
_HOUR, _DAY = 3_600, 86_400
_SECONDS = [*(60 * n for n in (1, 2, 5, 10, 15, 30)), *(_HOUR * n for n in (1, 2, 3, 6, 12)), _DAY, 2 * _DAY, 7 * _DAY]
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120)


def number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= max(size, 1e4):
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def duration(ms: float) -> str:
    unit = next((unit for unit, size in reversed(_DURATIONS.items()) if ms >= size), "ms")
    value = ms / _DURATIONS[unit]
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def lines(series: Points) -> str:
    """Plot points whose times are seconds since 1970."""
    times = [at for each in series.values() for at, _ in each]
    if not times:
        return NOTHING
    return _plot({name: [each] for name, each in series.items()}, min(times), max(times))


def stairs(series: Steps, window: Window, *, times: bool = False, filled: bool = False) -> str:
    """Plot values that are constant within a step. With `times`, they are milliseconds on a logarithmic scale."""
    return _plot(
        {name: list(_stairs(values, window)) for name, values in series.items()},
        window.from_minute * 60,
        window.to_minute * 60,
        times=times,
        filled=filled,
    )


def _stairs(values: Iterable[float | None], window: Window) -> Iterable[list[tuple[float, float]]]:
    """Yield one line per run without a gap."""
    line: list[tuple[float, float]] = []
    for start, value in zip(window.starts, values, strict=True):
        if value is None:
            if line:
                yield line
            line = []
            continue
        line += [(start * 60, value), (min(start + window.step_minutes, window.to_minute) * 60, value)]
    if line:
        yield line


def _plot(series: Lines, first: float, last: float, *, times: bool = False, filled: bool = False) -> str:
    greatest = max((value for each in series.values() for line in each for _, value in line), default=None)
    if greatest is None:
        return NOTHING
    ticks = _log_ticks(greatest) if times else _ticks(greatest)
    label = duration if times else number

    def high(value: float) -> float:
        share = max(0.0, value) / ticks[-1]
        return math.log1p(max(0.0, value)) / math.log1p(ticks[-1]) if times else share

    def x(at: float) -> float:
        return _WIDE * (at - first) / ((last - first) or 1)

    parts, key = [], []
    drawn: list[str] = []
    for tick in ticks:
        y = _HIGH * (1 - high(tick))
        parts.append(f'<path d="M0 {y:.1f}H{_WIDE}" stroke="var(--line)" vector-effect="non-scaling-stroke"/>')
    for place, (name, each) in enumerate(series.items()):
        colour, mine = f"var(--c{place % 4})", []
        for line in each:
            path = " ".join(f"{x(at):.1f},{_HIGH * (1 - high(value)):.2f}" for at, value in line)
            if filled:
                base = f"{x(line[0][0]):.1f},{_HIGH} {path} {x(line[-1][0]):.1f},{_HIGH}"
                mine.append(f'<polygon points="{base}" fill="{colour}" opacity=".2"/>')
            mine.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linecap="round" '
                'vector-effect="non-scaling-stroke" stroke-linejoin="round"/>'
            )
        drawn = mine + drawn  # Draw the first series on top.
        most = max((value for line in each for _, value in line), default=None)
        shown = "none" if most is None else f"at most <b>{label(most)}</b>"
        key.append(f'<span style="--c:{colour}"><i></i>{escape(name)}: {shown}</span>')
    ys = "".join(f'<span style="bottom:{100 * high(tick):.1f}%">{label(tick)}</span>' for tick in ticks)
    xs = "".join(f'<span style="left:{x(at) / 10:.1f}%">{text}</span>' for at, text in _time_ticks(first, last))
    inside = "".join(parts + drawn)
    plot = f'<svg viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" role="img">{inside}</svg>'
    return (
        f'<div class="key">{"".join(key)}</div><figure class="plot"><div class="frame"><div class="ys">{ys}</div>'
        f'{plot}<div class="xs">{xs}</div></div></figure>'
    )


def heatmap(cells: Mapping[tuple[str, int], float], rows: Sequence[str]) -> str:
    """Return a heatmap of milliseconds by row and hour of the day; longer times are darker."""
    if not cells:
        return NOTHING
    least, most = min(cells.values()), max(cells.values())
    low, wide = math.log1p(least), math.log1p(most) - math.log1p(least)
    hours = "".join(f"<em>{hour:02} h</em>" for hour in range(0, 24, 3))
    parts = [f"<span></span>{hours}"]
    for row in rows:
        parts.append(f"<span>{escape(row)}</span>")
        for hour in range(24):
            value = cells.get((row, hour))
            if value is None:
                parts.append("<u></u>")
            else:
                shade = 0.15 + 0.85 * (math.log1p(value) - low) / wide if wide else 1
                title = f"{escape(row)} {hour:02}:00: {duration(value)}"
                parts.append(f'<b style="opacity:{shade:.2f}" title="{title}"></b>')
    key = f"from <b>{duration(least)}</b> (faint) to <b>{duration(most)}</b> (strong); grey: no first lease"
    return f'<div class="key"><span>{key}</span></div><div class="grid">{"".join(parts)}</div>'


def _ticks(greatest: float) -> list[float]:
    """Return ticks from zero to just above the greatest value, in steps of 1, 2 or 5."""
    rough = max(greatest / _TICKS, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    return [step * place for place in range(math.ceil(max(greatest, step) / step) + 1)]


def _log_ticks(greatest: float) -> list[float]:
    above = next((place for place, tick in enumerate(_LOG_TICKS) if tick >= greatest), len(_LOG_TICKS) - 1)
    top = _LOG_TICKS[max(above, 1)]
    found: list[float] = [top]
    for tick in (*reversed(_LOG_TICKS[: max(above, 1)]), 0):
        if math.log1p(found[-1]) - math.log1p(tick) >= math.log1p(top) * _LOG_GAP:
            found.append(tick)
    return found[::-1]


def _time_ticks(first: float, last: float) -> list[tuple[float, str]]:
    """Return round times in UTC, with the date at the start of a day."""
    step = next((each for each in _SECONDS if (last - first) / each <= _TIMES), None)
    if step is None:
        return _month_ticks(first, last)
    found: list[tuple[float, str]] = []
    at = math.ceil(first / step) * step
    while at <= last:
        when = datetime.fromtimestamp(at, UTC)
        found.append((at, f"{when:%b} {when.day}" if at % _DAY == 0 else f"{when:%H:%M}"))
        at += step
    return found or [(first, f"{datetime.fromtimestamp(first, UTC):%H:%M}")]


def _month_ticks(first: float, last: float) -> list[tuple[float, str]]:
    begins, ends = datetime.fromtimestamp(first, UTC), datetime.fromtimestamp(last, UTC)
    months = range(begins.year * 12 + begins.month - 1, ends.year * 12 + ends.month)
    step = next((each for each in _MONTHS if len(months) / each <= _TIMES), _MONTHS[-1])
    starts = [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in months if month % step == 0]
    return [(at.timestamp(), f"{at:%b %Y}") for at in starts if first <= at.timestamp() <= last]
