"""Decodes streamed newline-delimited JSON; the size limit applies to each line, not to the body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.server.http.messages import Request, decode_fairly
from penstock.wire.http_errors import HttpError
from penstock.wire.strict_json import QUICK_BYTES

T = TypeVar("T")
BATCH_BYTES = 4 << 20


async def records(
    request: Request, decoder: msgspec.json.Decoder[T], *, line_bytes_max: int, batch_max: int
) -> AsyncIterator[list[T]]:
    """Yield batches of decoded lines, each small enough for one commit. Errors name the line."""
    batch: list[T] = []
    size = unpaused = 0
    async for number, line in _lines(request, line_bytes_max):
        try:
            batch.append(await decode_fairly(line, decoder))
        except HttpError as error:
            error.args = (f"line {number}: {error.args[0]}",)
            raise
        size += len(line)
        unpaused += len(line)
        if unpaused > QUICK_BYTES:
            unpaused = 0
            await asyncio.sleep(0)  # Let others run.
        if len(batch) >= batch_max or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def after(done: int, error: PenstockError, what: str = "messages") -> PenstockError:
    """Return the error with a note how many records were committed before it."""
    if done:
        error.hint = f"{done} {what} before it were kept" + (f"; {error.hint}" if error.hint else "")
    return error


async def _lines(request: Request, line_bytes_max: int) -> AsyncIterator[tuple[int, bytes]]:
    rest = bytearray()  # Grows in place, so a line that arrives byte by byte is not copied for each byte.
    number = 0
    async for chunk in request.chunks():
        first, *others = chunk.split(b"\n")
        rest += first
        for following in others:
            number += 1
            line, rest = bytes(rest), bytearray(following)
            _check(line, number, line_bytes_max)
            if line.strip():
                yield number, line
        _check(rest, number + 1, line_bytes_max)
    if rest.strip():
        yield number + 1, bytes(rest)


def _check(line: bytes | bytearray, number: int, line_bytes_max: int) -> None:
    if len(line) > line_bytes_max:
        raise HttpError(413, "line_too_large", f"line {number} is too large", hint=f"at most {line_bytes_max} bytes")
