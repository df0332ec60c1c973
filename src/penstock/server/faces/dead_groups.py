"""Dead letters by what killed them: `/queues/{queue}/dlq/errors`.

Errors that differ only in numbers, ids and quoted values are one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from penstock.broker import Broker
from penstock.model import Message, State
from penstock.server.http import Request, Response, reply
from penstock.server.routing import Route

LOOKED_AT_MAX = 5_000
PAGE = 250
GROUPS_MAX = 200
ERROR_SHOWN_MAX = 2_000
_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|'[^']*'|\"[^\"]*\"|\d+")


class GroupsQuery(Struct, forbid_unknown_fields=True):
    contains: Annotated[str, Meta(max_length=4_096)] | None = None
    """Only errors that contain this, as `error_contains` of a requeue does."""


class DeadGroup(Struct):
    error: str
    """The newest, as an example."""
    count: int
    newest_at: int
    oldest_at: int
    ids: list[int]
    """Newest first."""


class DeadGroups(Struct):
    groups: list[DeadGroup]
    """Largest first."""
    looked_at: int
    matched: int
    complete: bool
    """Whether all dead letters were looked at, rather than the newest."""


class DeadLetterGroups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/queues/{queue}/dlq/errors",
                handler=self.groups,
                summary="Dead letters by error; of very many, the newest",
                right="consume",
                tag="queues",
                query=GroupsQuery,
                answers={200: DeadGroups},
            )
        ]

    async def groups(self, request: Request) -> Response:
        wanted = request.query(GroupsQuery).contains
        found: dict[str, DeadGroup] = {}
        looked_at = matched = 0
        after: str | None = None
        while looked_at < LOOKED_AT_MAX:
            page, after = await self._broker.peek(request.params["queue"], state=State.DEAD, limit=PAGE, after=after)
            looked_at += len(page)
            for message, error in _with_errors(page):
                if wanted is None or wanted in error:
                    matched += 1
                    _add(found, message, error)
            if after is None:
                break
        groups = sorted(found.values(), key=lambda group: (-group.count, -group.newest_at))[:GROUPS_MAX]
        return reply(DeadGroups(groups, looked_at, matched, after is None), rows=len(groups))


def fingerprint(error: str) -> str:
    return _VARYING.sub("#", error)[:ERROR_SHOWN_MAX]


def _with_errors(messages: list[Message]) -> Iterator[tuple[Message, str]]:
    for message in messages:
        yield message, (message.errors[0].error if message.errors else message.reason) or ""


def _add(groups: dict[str, DeadGroup], message: Message, error: str) -> None:
    died_at = message.finished_at or message.created_at
    key = fingerprint(error)
    group = groups.get(key)
    if group is None:
        groups[key] = DeadGroup(error[:ERROR_SHOWN_MAX], 1, died_at, died_at, [message.id])
        return
    group.count += 1
    group.oldest_at = min(group.oldest_at, died_at)
    group.newest_at = max(group.newest_at, died_at)
    group.ids.append(message.id)
