"""Short histories of the queues that are visible in the dashboard's list."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.broker.broker import Broker
from penstock.core.ids import check_queue_name
from penstock.core.model import Ages, RollUp, Window
from penstock.server.api.tree.routes import API
from penstock.server.dashboard.overview import MINUTES_MAX
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.wire.http_errors import HttpError
from penstock.wire.queue_views import queue_view
from penstock.wire.queues import QueueView

QUEUES_MAX = 100


class SparklineQuery(Struct, forbid_unknown_fields=True):
    queues: Annotated[str, Meta(max_length=QUEUES_MAX * 256)]
    """Names, separated by commas."""
    minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 60
    step_minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 2


class Sparkline(Struct):
    queue: QueueView
    age_alert: bool
    """True if the oldest ready message is older than the queue's `max_age_alert_ms`."""
    pushed: list[int]
    """Counts per step, oldest first."""
    completed: list[int]
    failed: list[int]
    pending: list[int]


class SparklineList(Struct):
    sparks: list[Sparkline]
    """One entry per queue that exists."""


class Sparklines:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{API}/analytics/sparks",
                self.sparks,
                "Show named queues, each with a short history",
                "read",
                tag="tree",
                query=SparklineQuery,
                answers={200: SparklineList},
            )
        ]

    async def sparks(self, request: Request) -> Response:
        query = request.query(SparklineQuery)
        names = [check_queue_name(name) for name in query.queues.split(",")]
        points = -(-query.minutes // query.step_minutes)
        if len(names) > QUEUES_MAX or points * len(names) > 100 * QUEUES_MAX:
            raise HttpError(422, "invalid_value", f"at most {QUEUES_MAX} queues of 100 steps", field="queues")
        to = self._broker.store.clock() // 60_000 + 1
        window = Window(to - query.minutes, to, query.step_minutes)
        found: list[RollUp] = []
        for name in names:
            # Sorted by name, a queue comes first among those with its name as prefix.
            rolled = await self._broker.roll_ups(window, prefix=name, limit=1)
            found += [each for each in rolled if each.info.name == name]
        alerting = [each.info.name for each in found if each.info.options.max_age_alert_ms is not None]
        ages = await self._broker.read(lambda: self._broker.store.ages(alerting))
        sparks = [_sparkline(each, window, ages.get(each.info.name, Ages())) for each in found]
        return reply(SparklineList(sparks), rows=len(sparks))


def _sparkline(each: RollUp, window: Window, ages: Ages) -> Sparkline:
    spark = Sparkline(queue_view(each.info), each.info.options.is_age_alert(ages.oldest_ms), [], [], [], [])
    for span in each.steps(window):
        spark.pushed.append(span.happened.pushed)
        spark.completed.append(span.happened.acked)
        spark.failed.append(span.happened.nacked + span.happened.lapsed)
        spark.pending.append(span.depth.ready + span.depth.scheduled)
    return spark
