"""Newline-delimited JSON as it streams in: unlimited in sum, limited a line at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.server.http import HttpError, Request


async def lines(request: Request, line_bytes_max: int) -> AsyncIterator[bytes]:
    rest = b""
    number = 0
    async for chunk in request.chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            _check(line, number, line_bytes_max)
            if line.strip():
                yield line
        _check(rest, number + 1, line_bytes_max)
    if rest.strip():
        yield rest


def _check(line: bytes, number: int, line_bytes_max: int) -> None:
    if len(line) > line_bytes_max:
        raise HttpError(413, "line_too_large", f"line {number} is too large", hint=f"at most {line_bytes_max} bytes")
