"""The sketches in gold, read without Spark: what a KLL sketch of long integers kept, and how many each stands for.

The bytes are those of Apache DataSketches, little-endian: a preamble (its length, version, family, flags, u16 k, m);
then, but for a single value, i64 n, u16 min_k, u8 levels, the levels' starts as i32, the least and the greatest value,
and what was kept, level by level. A value of level i stands for 2^i.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.errors import Damaged

FAMILY = 15
_EMPTY, _SINGLE = 1, 4
_LEVELS_AT = 20


def weighted(sketch: bytes | None) -> Iterator[tuple[int, int]]:
    """Values and their weights, which add up to how many were counted."""
    if not sketch:
        return
    if len(sketch) < 8 or sketch[2] != FAMILY:
        raise Damaged("a sketch in gold is not one", hint="`penstock pipeline verify`")
    flags = sketch[3]
    if flags & _EMPTY:
        return
    if flags & _SINGLE:
        yield struct.unpack_from("<q", sketch, 8)[0], 1
        return
    levels = sketch[18]
    starts = struct.unpack_from(f"<{levels}i", sketch, _LEVELS_AT)
    items_at = _LEVELS_AT + 4 * levels + 16
    count = (len(sketch) - items_at) // 8
    items = struct.unpack_from(f"<{count}q", sketch, items_at)
    ends = [*starts[1:], starts[0] + count]
    for level, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for value in items[start - starts[0] : end - starts[0]]:
            yield value, 1 << level
