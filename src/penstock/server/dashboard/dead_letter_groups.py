"""Dead letters grouped by error: `/queues/{queue}/dlq/errors`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.broker.broker import Broker
from penstock.core.error_groups import ERROR_SHOWN_MAX, error_group
from penstock.core.model import DeadError
from penstock.server.api.polling import until_disconnect
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route

PAGE = 1_000
GROUPS_MAX = 200
# Limit of groups in one scan, so that a million distinct errors cannot exhaust the memory.
GROUPS_KEPT_MAX = 10_000


class GroupsQuery(Struct, forbid_unknown_fields=True):
    contains: Annotated[str, Meta(max_length=4_096)] = ""
    """Only errors that contain this text, like `error_contains` of a requeue."""


class DeadGroup(Struct):
    group: str
    """The group's name, for `where.groups` of a requeue."""
    error: str
    """The newest error as an example."""
    count: int
    newest_at: int
    oldest_at: int
    newest_id: int


class DeadGroups(Struct):
    groups: list[DeadGroup]
    """The largest 200, largest first."""
    looked_at: int
    """Number of dead letters in the queue."""
    matched: int
    left_out: int
    """Dead letters that match and are in none of these groups."""
    seen_at: int
    """Time of the scan, for `where.died_before` of a requeue."""


class DeadLetterGroups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/queues/{queue}/dlq/errors",
                self.groups,
                "Group dead letters by error",
                "consume",
                tag="queues",
                query=GroupsQuery,
                answers={200: DeadGroups},
            )
        ]

    async def groups(self, request: Request) -> Response:
        contains = request.query(GroupsQuery).contains
        # A scan of very many takes a while; it stops if the client disconnects.
        found = await until_disconnect(request, self._group_errors(request.params["queue"], contains))
        return reply(found, rows=len(found.groups))

    async def _group_errors(self, queue: str, contains: str) -> DeadGroups:
        seen_at = self._broker.store.clock()
        groups: dict[str, DeadGroup] = {}
        looked_at = matched = 0
        after: str | None = None
        while True:
            page, after = await self._broker.dead_errors(queue, contains=contains, limit=PAGE, after=after)
            # The clock may have been set back since the messages died.
            seen_at = max([seen_at, *(letter.died_at for letter in page[:1])])
            looked_at += len(page)
            for letter in page:
                if letter.is_wanted:
                    matched += 1
                    _add(groups, letter)
            if after is None:
                break
        largest = sorted(groups.values(), key=lambda group: (-group.count, -group.newest_at))[:GROUPS_MAX]
        return DeadGroups(largest, looked_at, matched, matched - sum(group.count for group in largest), seen_at)


def _add(groups: dict[str, DeadGroup], letter: DeadError) -> None:
    name = error_group(letter.error)
    group = groups.get(name)
    if group is not None:
        # The page is sorted newest first.
        group.count += 1
        group.oldest_at = letter.died_at
    elif len(groups) < GROUPS_KEPT_MAX:
        shown = letter.error[:ERROR_SHOWN_MAX]
        groups[name] = DeadGroup(name, shown, 1, letter.died_at, letter.died_at, letter.id)
