"""Queue history over a window, computed back from the current counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.model import QueueInfo, RollUp, Window
from penstock.store.common import depth_of, span_of


def roll_up(info: QueueInfo, counts: Sequence[int], changes: Mapping[int, Sequence[int]], window: Window) -> RollUp:
    """Return the history of a queue from its changes by step number; changes after the window are one extra step."""
    spans = []
    starts = window.starts
    for step in sorted(changes, reverse=True):
        if step < len(starts):
            spans.append(span_of(starts[step], changes[step], counts))
        counts = [after - change for after, change in zip(counts, changes[step], strict=True)]
    return RollUp(info, depth_of(counts), spans[::-1])
