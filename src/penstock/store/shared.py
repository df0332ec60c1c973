"""What stores have in common: the names of counters, tokens, and how content is written down."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from penstock.model import Content, Depth, QueueOptions, Span, Totals

GAUGES = ("ready", "scheduled", "leased", "dead", "archived")
TOTALS = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")
NEVER = 1 << 62

CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON)
CONTENT_CODES = {content: code for code, content in enumerate(CONTENTS)}

TOKEN_BYTES = 16


_options = msgspec.json.Decoder(QueueOptions)  # Made here: threads that decode it first, together, can crash msgspec.


@lru_cache(maxsize=4096)
def decode_options(text: str) -> QueueOptions:
    return _options.decode(text)


def encode_options(options: QueueOptions) -> str:
    return msgspec.json.encode(options).decode()


def new_token(until: int) -> bytes:
    """A secret that begins with the time under which its lease is found."""
    return until.to_bytes(6, "big") + os.urandom(10)


def new_tokens(untils: Sequence[int]) -> list[bytes]:
    """As `new_token`, one for each."""
    chance = os.urandom(10 * len(untils))
    return [until.to_bytes(6, "big") + chance[10 * n : 10 * n + 10] for n, until in enumerate(untils)]


def token_bytes(token: str) -> bytes:
    """A token as it is stored; text that never was one matches nothing."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        return b""


def depth_of(counts: Sequence[int]) -> Depth:
    """Of counters in the order of GAUGES and TOTALS."""
    return Depth(*counts[: len(GAUGES)])


def span_of(minute: int, happened: Sequence[int], counts: Sequence[int]) -> Span:
    totals = Totals(**dict(zip(TOTALS, happened[len(GAUGES) :], strict=True)))
    return Span(minute, totals, depth_of(counts))
