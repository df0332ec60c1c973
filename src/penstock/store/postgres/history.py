"""Roll-ups over a window: what each step changed, counted back from what is there now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.model import QueueInfo, RollUp, Window
from penstock.store.common import depth_of, span_of


def roll_up(info: QueueInfo, counts: Sequence[int], changes: Mapping[int, Sequence[int]], window: Window) -> RollUp:
    """`changes` by the number of the step; what came after the window is one step more."""
    spans = []
    starts = window.starts
    for step in sorted(changes, reverse=True):
        if step < len(starts):
            spans.append(span_of(starts[step], changes[step], counts))
        counts = [after - change for after, change in zip(counts, changes[step], strict=True)]
    return RollUp(info, depth_of(counts), spans[::-1])
