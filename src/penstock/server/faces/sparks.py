"""A few queues as a line each: what a list shows of those that are in sight."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.broker import Broker
from penstock.identity import check_queue_name
from penstock.model import RollUp, Window
from penstock.server.errors import HttpError
from penstock.server.faces.overview import MINUTES_MAX
from penstock.server.faces.queue_shapes import QueueView, queue_view
from penstock.server.faces.tree_routes import API
from penstock.server.http import Request, Response, reply
from penstock.server.routing import Route

QUEUES_MAX = 100


class SparksQuery(Struct, forbid_unknown_fields=True):
    queues: Annotated[str, Meta(max_length=QUEUES_MAX * 256)]
    """Names, separated by commas."""
    minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 60
    step_minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 2


class Spark(Struct):
    queue: QueueView
    pushed: list[int]
    """Of each step, oldest first."""
    completed: list[int]
    failed: list[int]
    pending: list[int]


class SparkList(Struct):
    sparks: list[Spark]
    """Of those queues that exist."""


class Sparks:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path=f"{API}/analytics/sparks",
                handler=self.sparks,
                summary="Some queues by name, each with a short history",
                right="read",
                tag="tree",
                query=SparksQuery,
                answers={200: SparkList},
            )
        ]

    async def sparks(self, request: Request) -> Response:
        query = request.query(SparksQuery)
        names = [check_queue_name(name) for name in query.queues.split(",")]
        points = -(-query.minutes // query.step_minutes)
        if len(names) > QUEUES_MAX or points * len(names) > 100 * QUEUES_MAX:
            raise HttpError(422, "invalid_value", f"at most {QUEUES_MAX} queues of 100 steps", field="queues")
        to = self._broker.store.clock() // 60_000 + 1
        window = Window(to - query.minutes, to, query.step_minutes)
        found = []
        for name in names:
            # A name is the first of all that begin with it.
            rolled = await self._broker.roll_ups(window, prefix=name, limit=1)
            found += [_spark(each, window) for each in rolled if each.info.name == name]
        return reply(SparkList(found), rows=len(found))


def _spark(each: RollUp, window: Window) -> Spark:
    spark = Spark(queue_view(each.info), [], [], [], [])
    spans = {span.minute: span for span in each.spans}
    depth = each.before
    for start in window.starts:
        span = spans.get(start)
        depth = depth if span is None else span.depth
        happened = None if span is None else span.happened
        spark.pushed.append(0 if happened is None else happened.pushed)
        spark.completed.append(0 if happened is None else happened.acked)
        spark.failed.append(0 if happened is None else happened.nacked + happened.lapsed)
        spark.pending.append(depth.ready + depth.scheduled)
    return spark
