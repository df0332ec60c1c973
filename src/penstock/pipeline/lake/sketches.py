"""Reads the KLL sketches of the gold tables without Spark: the retained values and their weights.

The bytes are those of Apache DataSketches, little-endian: a preamble (its length, version, family, flags, u16 k, m);
then, except for a single value, i64 n, u16 min_k, u8 levels, the levels' starts as i32, minimum and maximum,
and the retained values, level by level. A value of level i has weight 2^i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import Damaged

FAMILY = 15
_SINGLE = 4
_PREAMBLE_BYTES = 8
_LEVELS_AT = 20
# Exceeds the greatest result of `buckets`.
BUCKETS = 256
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def weighted(sketches: pa.BinaryArray) -> tuple[Numbers, Numbers, Numbers]:
    """Return sketch number, value and weight as columns; a sketch's weights add up to its number of values."""
    data = np.frombuffer(sketches.buffers()[2] or b"", np.uint8)
    offsets = np.frombuffer(sketches.buffers()[1], np.int32)[sketches.offset : sketches.offset + len(sketches) + 1]
    rows = np.flatnonzero(np.diff(offsets) > _PREAMBLE_BYTES)
    at, sizes = offsets[rows].astype(np.int64), np.diff(offsets)[rows]
    if np.any(data[at + 2] != FAMILY):
        raise Damaged("corrupt sketch in the gold table", hint="run `penstock pipeline verify`")
    single = data[at + 3] & _SINGLE > 0
    levels = np.where(single, 0, data[np.minimum(at + 18, len(data) - 1)]).astype(np.int64)
    before = np.where(single, _PREAMBLE_BYTES, _LEVELS_AT + 4 * levels + 16)
    counts = (sizes - before) // 8
    firsts = np.cumsum(counts) - counts
    places = np.repeat(at + before - 8 * firsts, counts) + 8 * np.arange(counts.sum())
    values, weights = _integers(data, places), np.ones(len(places), np.int64)
    for row in np.flatnonzero(levels > 1):  # Busy minutes, with more than a few hundred values.
        starts = data[at[row] + _LEVELS_AT :][: 4 * levels[row]].view("<i4").astype(np.int64)
        kept = np.diff(np.append(starts, starts[0] + counts[row]))
        weights[firsts[row] : firsts[row] + counts[row]] = np.repeat(1 << np.arange(levels[row]), kept)
    return np.repeat(rows, counts), values, weights


def _integers(data: np.ndarray[Any, np.dtype[np.uint8]], places: Numbers) -> Numbers:
    """Return the 64-bit integers at these byte positions."""
    found = np.empty(len(places), np.int64)
    for shift in np.unique(places % 8):
        whole = data[shift : shift + (len(data) - shift) // 8 * 8].view("<i8")
        chosen = places % 8 == shift
        found[chosen] = whole[places[chosen] // 8]
    return found


def buckets(ms: Numbers) -> Numbers:
    """Vectorized `latency.bucket`."""
    ms = np.maximum(ms, 0)
    bits = np.frexp(ms.astype(np.float64))[1].astype(np.int64)
    return np.where(ms < 8, ms, bits << 2 | (ms >> np.maximum(bits - 3, 0)) & 3)
