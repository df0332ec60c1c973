"""Names and ids: what a queue may be called, and the UUID that each message has beside its integer.

The UUID is version 7 and is not stored: 48 bits of creation time, 44 bits of the message's integer id, 30 bits of a
salt drawn once for each store. So it sorts by age, is unique across stores, and leads back to its message without an
index.
"""

from __future__ import annotations

import os
import re
import secrets
import uuid
from collections.abc import Iterator
from functools import lru_cache

from penstock.errors import InvalidName, WrongType

ID_BITS = 44
ID_MAX = (1 << ID_BITS) - 1
SALT_BITS = 30
NAME_LENGTH_MAX = 255
DLQ_SUFFIX = ".dlq"

PART_PATTERN = r"[A-Za-z0-9._-]{1,255}"
NAME_PATTERN = f"{PART_PATTERN}(?:/{PART_PATTERN}/{PART_PATTERN})?"
_NAME = re.compile(NAME_PATTERN, re.ASCII)
_known_names: set[str] = set()


def own_name() -> str:
    """What this process is called as a worker, if it is given no other name."""
    return _own_name(os.getpid())


@lru_cache(maxsize=1)
def _own_name(pid: int) -> str:
    import socket  # Only who works under a name needs it.

    return f"worker-{socket.gethostname()}-{pid}"[:NAME_LENGTH_MAX]


def check_queue_name(name: str) -> str:
    """A flat name, or a path of namespace/task/queue; anything else is refused."""
    if not isinstance(name, str):
        raise WrongType(f"a queue name is a str, not {type(name).__name__}", field="queue")
    if name in _known_names:
        return name
    # Programs that tidy up URLs could not reach a queue called "..".
    if not _NAME.fullmatch(name) or not {".", ".."}.isdisjoint(name.split("/")):
        raise InvalidName(
            f"{name!r} is not a queue name",
            field="queue",
            hint="1 to 255 of letters, digits and . _ -, or three such names as namespace/task/queue",
        )
    if len(_known_names) < 100_000:
        _known_names.add(name)
    return name


def check_new_queue_name(name: str) -> str:
    """As `check_queue_name`, for a queue that is to be made: dead letters are addressed, never made."""
    check_queue_name(name)
    if name.endswith(DLQ_SUFFIX):
        raise InvalidName(
            f"{name!r} names the dead letters of {name.removesuffix(DLQ_SUFFIX)!r}",
            field="queue",
            hint="dead letters come from their queue; choose a name that does not end in .dlq",
        )
    return name


def check_scope(scope: str) -> str:
    """A namespace, or namespace/task."""
    if not isinstance(scope, str):
        raise WrongType(f"a scope is a str, not {type(scope).__name__}", field="scope")
    if scope.count("/") > 1 or not all(part and "/" not in part and _NAME.fullmatch(part) for part in scope.split("/")):
        raise InvalidName(f"{scope!r} is not a scope", field="scope", hint="a namespace, or namespace/task")
    return scope


def topics(queue: str) -> Iterator[str]:
    """What a poll may be waiting for when this queue gets a message: the queue, its task, its namespace."""
    yield queue
    queue = queue.removesuffix("/")
    while "/" in queue:
        queue = queue.rpartition("/")[0]
        yield queue + "/"


def new_salt() -> int:
    return secrets.randbits(SALT_BITS)


def message_uuid(message_id: int, created_at: int, salt: int) -> str:
    low = (message_id & 0xFFFF_FFFF) << SALT_BITS | salt
    # One old-style format is the fastest of all ways to write it.
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031
        created_at >> 16,
        created_at & 0xFFFF,
        message_id >> 32,
        0x8000 | low >> 48,
        low & 0xFFFF_FFFF_FFFF,
    )


def message_id_of(text: str, salt: int) -> int | None:
    """The integer id inside a UUID of this store; None for any other text."""
    try:
        value = uuid.UUID(text).int
    except ValueError:
        return None
    if value & (1 << SALT_BITS) - 1 != salt or value >> 76 & 0xF != 7 or value >> 62 & 0b11 != 0b10:
        return None
    return (value >> 64 & 0xFFF) << 32 | value >> SALT_BITS & 0xFFFF_FFFF
