"""Latency histograms. A bucket is a quarter of a power of two wide, so a percentile is accurate to one eighth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from penstock.core.model import Latencies, Latency, Window

PERCENTILES = (50, 95, 99)
WAIT, SERVICE, TOTAL = 0, 1, 2
NAMES = {WAIT: "wait_ms", SERVICE: "service_ms", TOTAL: "total_ms"}
Counts = dict[int, int]
# Minute, kind, and counts per bucket in JSON.
Row = tuple[int, int, str]


def bucket(ms: int) -> int:
    """Return the number of the bucket that a time falls into."""
    if ms < 8:
        return ms if ms > 0 else 0
    bits = ms.bit_length()
    return bits << 2 | (ms >> bits - 3) & 3


def middle(number: int) -> int:
    """Return the time in the middle of a bucket."""
    if number < 8:
        return number
    bits, quarter = number >> 2, number & 3
    width = 1 << bits - 3
    return (4 + quarter) * width + width // 2


def percentiles(counts: Mapping[int, int]) -> dict[str, int | None]:
    """Return `p50`, `p95` and `p99`, each None if nothing was counted."""
    total = sum(counts.values())
    found: dict[str, int | None] = {f"p{percent}": None for percent in PERCENTILES}
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        for percent in PERCENTILES:
            if found[f"p{percent}"] is None and seen * 100 >= total * percent:
                found[f"p{percent}"] = middle(number)
    return found


def latency_of(rows: Iterable[Row]) -> Latency:
    return summarize(_counted(rows))


def summarize(kinds: Mapping[int, Counts]) -> Latency:
    """Return the percentiles of histograms by kind."""
    return {name: percentiles(kinds.get(kind, {})) for kind, name in NAMES.items()}


def latencies_of(queue: str, rows: Iterable[Row], window: Window) -> Latencies:
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(window.start_of(row[0]), []).append(row)
    return merged(queue, [{start: _counted(found) for start, found in steps.items()}])


def merged(queue: str, parts: Iterable[Mapping[int, Mapping[int, Counts]]]) -> Latencies:
    """Add up histograms by step and kind from several sources."""
    counts: dict[int, dict[int, Counts]] = {}
    everything = _empty_counts()
    for part in parts:
        for step, kinds in part.items():
            there = counts.setdefault(step, _empty_counts())
            for kind, seen in kinds.items():
                for total in (there[kind], everything[kind]):
                    for number, count in seen.items():
                        total[number] = total.get(number, 0) + count
    return Latencies(queue, summarize(everything), {step: summarize(kinds) for step, kinds in counts.items()}, counts)


def _empty_counts() -> dict[int, Counts]:
    return {kind: {} for kind in NAMES}


def _counted(rows: Iterable[Row]) -> dict[int, Counts]:
    counts: dict[int, Counter[int]] = {kind: Counter() for kind in NAMES}
    for _, kind, text in rows:
        counts[kind].update(msgspec.json.decode(text, type=Counts))
    return {kind: dict(seen) for kind, seen in counts.items()}
