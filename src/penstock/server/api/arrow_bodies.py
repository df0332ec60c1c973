"""Reads an Arrow IPC stream one message at a time, so that it never has to fit in memory.

Each message is `FFFFFFFF · u32 length of what follows · flatbuffer · body`; the flatbuffer says how long the body is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from struct import Struct

from penstock.log.model import Payload
from penstock.server.http.messages import Request
from penstock.wire.arrow_records import in_commits, payloads_of
from penstock.wire.http_errors import HttpError

MESSAGE_BYTES_MAX = 64 << 20
METADATA_BYTES_MAX = 1 << 20
END = b"\xff\xff\xff\xff\0\0\0\0"
SCHEMA, DICTIONARY, RECORDS = 1, 2, 3
_HEAD = Struct("<II")
_U16, _I32, _U32, _I64 = Struct("<H"), Struct("<i"), Struct("<I"), Struct("<q")


async def arrow_batches(request: Request) -> AsyncIterator[Sequence[Payload]]:
    """Yield batches small enough for one commit, from the column `data` or the only one, of binary or string."""
    schema = b""
    async for kind, message in _messages(request):
        if kind == SCHEMA and not schema:
            schema = message
        elif kind == RECORDS and schema:
            payloads = await asyncio.to_thread(_payloads, schema + message + END)
            for batch in in_commits(payloads):
                yield batch
        else:
            raise _malformed(
                "dictionaries are not supported" if kind == DICTIONARY else "its messages are out of order"
            )


def _payloads(stream: bytes) -> Sequence[Payload]:
    import pyarrow as pa

    try:
        batch = pa.ipc.open_stream(stream).read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise _malformed(str(error)) from None
    return payloads_of(batch)


async def _messages(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the stream's complete messages, each with its kind."""
    buffer = bytearray()
    wanted = _HEAD.size
    async for chunk in request.chunks():
        buffer += chunk
        while len(buffer) >= wanted:
            marker, length = _HEAD.unpack_from(buffer)
            if marker != 0xFFFFFFFF:
                raise _malformed("it is not in the Arrow IPC stream format")
            if length == 0:
                return
            if length > METADATA_BYTES_MAX:
                raise _too_large()
            wanted = _HEAD.size + length
            if len(buffer) < wanted:
                break
            kind, body = _describe(bytes(buffer[_HEAD.size : wanted]))
            wanted += body
            if wanted > MESSAGE_BYTES_MAX:
                raise _too_large()
            if len(buffer) < wanted:
                break
            yield kind, bytes(buffer[:wanted])
            del buffer[:wanted]
            wanted = _HEAD.size
    if buffer:
        raise _malformed("it is truncated")


def _describe(message: bytes) -> tuple[int, int]:
    """Return a message's kind and body length from its flatbuffer."""
    try:
        table = _U32.unpack_from(message)[0]
        kind = message[at] if (at := _field(message, table, 1)) else 0
        body = _I64.unpack_from(message, at)[0] if (at := _field(message, table, 3)) else 0
        if kind == RECORDS and (at := _field(message, table, 2)):
            records = at + _U32.unpack_from(message, at)[0]
            if _field(message, records, 3):
                raise _malformed("its buffers are compressed", "send it uncompressed")
    except (IndexError, ValueError, OverflowError) as error:
        raise _malformed(str(error)) from None
    except struct.error:
        raise _malformed("its metadata cannot be read") from None
    if body < 0:
        raise _malformed("a body of negative length")
    return kind, body


def _field(message: bytes, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffer table; 0 if it is absent."""
    vtable = table - _I32.unpack_from(message, table)[0]
    if vtable < 0:
        raise ValueError("its metadata cannot be read")
    slot = 4 + 2 * number
    if slot >= _U16.unpack_from(message, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(message, vtable + slot)[0]
    return table + offset if offset else 0


def _malformed(reason: str, hint: str | None = None) -> HttpError:
    return HttpError(400, "malformed_arrow", f"cannot read the Arrow stream: {reason}", hint=hint)


def _too_large() -> HttpError:
    return HttpError(
        413, "body_too_large", "a batch of the Arrow stream is too large", hint=f"at most {MESSAGE_BYTES_MAX} bytes"
    )
