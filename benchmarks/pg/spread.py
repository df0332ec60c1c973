"""Summarizes a list of times by percentiles."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any


def spread(values_ms: list[float]) -> dict[str, Any]:
    return {
        "p50_ms": round(median(values_ms), 2),
        "p99_ms": round(quantiles(values_ms, n=100, method="inclusive")[98], 2),
        "most_ms": round(max(values_ms), 2),
    }
