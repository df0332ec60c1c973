"""The stream face's calls, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.log.model import Trimmed
from penstock.server.api.streams.bodies import NDJSON
from penstock.server.api.streams.pages import ARROW
from penstock.server.routing import Right, Route
from penstock.wire import streams as shapes
from penstock.wire.queues import Done

if TYPE_CHECKING:
    from penstock.server.api.streams.handlers import StreamFace

STREAM = "/streams/{stream}"
CONSUMERS = f"{STREAM}/consumers"
CONSUMER = f"{CONSUMERS}/{{consumer}}"
BODIES = ("application/json", NDJSON, ARROW, "text/plain", "application/octet-stream")


def stream_routes(face: StreamFace) -> list[Route]:
    def call(method: str, path: str, handler: Any, summary: str, right: Right = "admin", **rest: Any) -> Route:
        return Route(method=method, path=path, handler=handler, summary=summary, right=right, tag="streams", **rest)

    return [
        call(
            "POST",
            "/streams",
            face.create,
            "Create a stream; 200 if it exists just so",
            body=shapes.CreateStream,
            answers={201: shapes.StreamView, 200: shapes.StreamView},
            errors=(409,),
        ),
        call(
            "GET",
            "/streams",
            face.list_all,
            "List streams",
            query=shapes.StreamListQuery,
            answers={200: shapes.StreamList},
        ),
        call(
            "GET", STREAM, face.show, "Show a stream: segments, consumers", "read", answers={200: shapes.StreamDetail}
        ),
        call(
            "PATCH",
            STREAM,
            face.change,
            "Change options",
            body=shapes.StreamChanges,
            answers={200: shapes.StreamView},
        ),
        call(
            "DELETE",
            STREAM,
            face.drop,
            "Delete a stream; with force, also one that has consumers",
            query=shapes.DropStreamQuery,
            answers={200: shapes.DroppedStream},
            errors=(409,),
        ),
        call(
            "POST",
            f"{STREAM}/trim",
            face.trim,
            "Remove the oldest segments that nobody needs",
            body=shapes.TrimBody,
            body_required=False,
            answers={200: Trimmed},
        ),
        call("POST", f"{STREAM}/check", face.check, "Look at every record", answers={200: shapes.ReportView}),
        call("POST", f"{STREAM}/repair", face.repair, "Mend what can be mended", answers={200: shapes.ReportView}),
        call(
            "POST",
            f"{STREAM}/records",
            face.append,
            "Append one record, or many; answered when on disk, 200 if its key was there already",
            "push",
            query=shapes.AppendQuery,
            body=shapes.AppendBody,
            body_types=BODIES,
            body_required=False,
            answers={201: shapes.AppendedView, 200: shapes.AppendedView},
            errors=(409,),
            headers=("Idempotency-Key",),
        ),
        call(
            "GET",
            f"{STREAM}/records",
            face.read,
            "Records from an offset on, waiting for the first",
            "consume",
            query=shapes.ReadQuery,
            answers={200: (shapes.PageView, ARROW)},
            errors=(406, 410),
        ),
        call(
            "GET",
            f"{STREAM}/next",
            face.next,
            "The records after a consumer's position, waiting for the first",
            "consume",
            query=shapes.NextQuery,
            answers={200: (shapes.PageView, ARROW)},
            errors=(406, 410),
            safe=False,
        ),
        call(
            "GET",
            CONSUMERS,
            face.list_consumers,
            "List consumers",
            "read",
            answers={200: shapes.ConsumerList},
        ),
        call(
            "POST",
            CONSUMERS,
            face.add_consumer,
            "Make a consumer, with a unique id unless one is given",
            "consume",
            body=shapes.NewConsumer,
            body_required=False,
            answers={201: shapes.ConsumerView},
        ),
        call("GET", CONSUMER, face.consumer, "A consumer's position", "read", answers={200: shapes.ConsumerView}),
        call(
            "PUT",
            CONSUMER,
            face.commit,
            "Commit a position: the last record processed; durable when answered",
            "consume",
            body=shapes.Position,
            answers={200: shapes.ConsumerView},
            errors=(409,),
        ),
        call("DELETE", CONSUMER, face.forget, "Forget a consumer", "consume", answers={200: Done}),
    ]
