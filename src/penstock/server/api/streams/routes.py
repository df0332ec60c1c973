"""Routes of the stream API."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.log.model import Trimmed
from penstock.server.api.streams.bodies import NDJSON
from penstock.server.api.streams.pages import ARROW
from penstock.server.routing import Route
from penstock.wire import streams as shapes
from penstock.wire.queues import Done

if TYPE_CHECKING:
    from penstock.server.api.streams.handlers import StreamApi

STREAM = "/streams/{stream}"
CONSUMERS = f"{STREAM}/consumers"
CONSUMER = f"{CONSUMERS}/{{consumer}}"
BODIES = ("application/json", NDJSON, ARROW, "text/plain", "application/octet-stream")


def stream_routes(api: StreamApi) -> list[Route]:
    call = partial(Route, tag="streams")
    return [
        call(
            "POST",
            "/streams",
            api.create,
            "Create a stream; 200 if it exists with the same options",
            body=shapes.CreateStream,
            answers={201: shapes.StreamView, 200: shapes.StreamView},
            errors=(409,),
        ),
        call(
            "GET",
            "/streams",
            api.list_all,
            "List streams",
            query=shapes.StreamListQuery,
            answers={200: shapes.StreamList},
        ),
        call(
            "GET",
            STREAM,
            api.show,
            "Show a stream, its segments and consumers",
            "read",
            answers={200: shapes.StreamDetail},
        ),
        call(
            "PATCH", STREAM, api.change, "Change options", body=shapes.StreamChanges, answers={200: shapes.StreamView}
        ),
        call(
            "DELETE",
            STREAM,
            api.drop,
            "Delete a stream; with force, also one that has consumers",
            query=shapes.DropStreamQuery,
            answers={200: shapes.DroppedStream},
            errors=(409,),
        ),
        call(
            "POST",
            f"{STREAM}/trim",
            api.trim,
            "Remove the oldest segments that no consumer needs",
            body=shapes.TrimBody,
            body_required=False,
            answers={200: Trimmed},
        ),
        call("POST", f"{STREAM}/check", api.check, "Check every record", answers={200: shapes.ReportView}),
        call("POST", f"{STREAM}/repair", api.repair, "Repair damaged segments", answers={200: shapes.ReportView}),
        call(
            "POST",
            f"{STREAM}/records",
            api.append,
            "Append one or many records durably; 200 if the key was used already",
            "push",
            query=shapes.AppendQuery,
            body=shapes.AppendBody,
            body_types=BODIES,
            body_required=False,
            answers={201: shapes.Appended, 200: shapes.Appended},
            errors=(409,),
            headers=("Idempotency-Key",),
        ),
        call(
            "GET",
            f"{STREAM}/records",
            api.read,
            "Read records from an offset; wait_ms waits for the first",
            "consume",
            query=shapes.ReadQuery,
            answers={200: (shapes.PageView, ARROW)},
            errors=(406, 410),
        ),
        call(
            "GET",
            f"{STREAM}/next",
            api.next,
            "Read records after a consumer's position; wait_ms waits for the first",
            "consume",
            query=shapes.NextQuery,
            answers={200: (shapes.PageView, ARROW)},
            errors=(406, 410),
            safe=False,
        ),
        call("GET", CONSUMERS, api.list_consumers, "List consumers", "read", answers={200: shapes.ConsumerList}),
        call(
            "POST",
            CONSUMERS,
            api.add_consumer,
            "Create a consumer, with a unique name unless one is given",
            "consume",
            body=shapes.NewConsumer,
            body_required=False,
            answers={201: shapes.ConsumerView},
        ),
        call("GET", CONSUMER, api.consumer, "Show a consumer's position", "read", answers={200: shapes.ConsumerView}),
        call(
            "PUT",
            CONSUMER,
            api.commit,
            "Commit a position (the last record processed) durably",
            "consume",
            body=shapes.Position,
            answers={200: shapes.ConsumerView},
            errors=(409,),
        ),
        call("DELETE", CONSUMER, api.forget, "Forget a consumer", "consume", answers={200: Done}),
    ]
