"""Queue names, and the UUID that each message has beside its integer id.

The UUID is version 7 and is not stored: 48 bits of creation time, 44 bits of the message's integer id, 30 random bits
that identify the store. So it sorts by age, is unique across stores, and yields the integer id without an index.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from functools import lru_cache

from penstock.errors import InvalidName, WrongType

ID_BITS = 44
ID_MAX = (1 << ID_BITS) - 1
# The row key of a message is, from the highest bit: the id of its queue, one bit for its lane, its own id.
QUEUE_SHIFT = ID_BITS + 1
QUEUE_ID_MAX = (1 << 63 - QUEUE_SHIFT) - 1
STORE_ID_BITS = 30
NAME_LENGTH_MAX = 255
DLQ_SUFFIX = ".dlq"

PART_PATTERN = r"[A-Za-z0-9._-]{1,255}"
NAME_PATTERN = f"{PART_PATTERN}(?:/{PART_PATTERN}/{PART_PATTERN})?"
_NAME = re.compile(NAME_PATTERN, re.ASCII)
_known_names: set[str] = set()


def own_name() -> str:
    """Return the default worker name of this process."""
    return _own_name(os.getpid())


@lru_cache(maxsize=1)
def _own_name(pid: int) -> str:
    import socket  # Imported here because only workers need it.

    return f"worker-{socket.gethostname()}-{pid}"[:NAME_LENGTH_MAX]


def check_queue_name(name: str) -> str:
    """Return the name if it is a flat name or a namespace/task/queue path; raise otherwise."""
    if not isinstance(name, str):
        raise WrongType(f"queue name: expected str, got {type(name).__name__}", field="queue")
    if name in _known_names:
        return name
    # HTTP clients that normalize URLs could not reach a queue called "..".
    if not _NAME.fullmatch(name) or not {".", ".."}.isdisjoint(name.split("/")):
        raise InvalidName(
            f"{name!r} is not a valid queue name",
            field="queue",
            hint="use 1 to 255 letters, digits and . _ -, or three such names as namespace/task/queue",
        )
    if len(_known_names) < 100_000:
        _known_names.add(name)
    return name


def check_new_queue_name(name: str) -> str:
    """Check the name of a queue to create. A dead-letter queue cannot be created by name."""
    check_queue_name(name)
    if name.endswith(DLQ_SUFFIX):
        raise InvalidName(
            f"{name!r} is reserved for the dead letters of {name.removesuffix(DLQ_SUFFIX)!r}",
            field="queue",
            hint="choose a name that does not end in .dlq",
        )
    return name


def check_scope(scope: str) -> str:
    """Return the scope if it is a namespace or namespace/task; raise otherwise."""
    if not isinstance(scope, str):
        raise WrongType(f"scope: expected str, got {type(scope).__name__}", field="scope")
    if scope.count("/") > 1 or not all(part and "/" not in part and _NAME.fullmatch(part) for part in scope.split("/")):
        raise InvalidName(f"{scope!r} is not a valid scope", field="scope", hint="use a namespace or namespace/task")
    return scope


def topics(queue: str) -> Iterator[str]:
    """Yield the topics to notify when this queue gets a message: the queue, its task, its namespace."""
    yield queue
    queue = queue.removesuffix("/")
    while "/" in queue:
        queue = queue.rpartition("/")[0]
        yield queue + "/"


def new_store_id() -> int:
    import secrets  # Slow to import, and only a new store needs it.

    return secrets.randbits(STORE_ID_BITS)


def message_uuid(message_id: int, created_at: int, store_id: int) -> str:
    low = (message_id & 0xFFFF_FFFF) << STORE_ID_BITS | store_id
    # A single old-style format is the fastest way measured.
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031
        created_at >> 16,
        created_at & 0xFFFF,
        message_id >> 32,
        0x8000 | low >> 48,
        low & 0xFFFF_FFFF_FFFF,
    )


def message_id_of(text: str, store_id: int) -> int | None:
    """Return the integer id inside a UUID of this store; None for any other text."""
    try:
        value = uuid.UUID(text).int
    except ValueError:
        return None
    if value & (1 << STORE_ID_BITS) - 1 != store_id or value >> 76 & 0xF != 7 or value >> 62 & 0b11 != 0b10:
        return None
    return (value >> 64 & 0xFFF) << 32 | value >> STORE_ID_BITS & 0xFFFF_FFFF
