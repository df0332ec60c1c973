"""Lists workers: servers of the fleet, and consumers that give a name when they lease."""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.store.workers import cursor
from penstock.wire.workers import WorkerPage, WorkersQuery, worker_view


class Workers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/workers",
                self.list_all,
                "List servers and named consumers with their leases and last heartbeats",
                query=WorkersQuery,
                answers={200: WorkerPage},
                tag="operations",
            )
        ]

    async def list_all(self, request: Request) -> Response:
        query = request.query(WorkersQuery)
        found = await self._broker.workers(after=query.after, limit=query.limit)
        following = cursor(found[-1]) if len(found) == query.limit else None
        return reply(WorkerPage([worker_view(each) for each in found], following), rows=len(found))
