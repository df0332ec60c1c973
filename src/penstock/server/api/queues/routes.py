"""The queue face's calls, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.server.routing import Route
from penstock.wire import queues as shapes

if TYPE_CHECKING:
    from penstock.server.api.queues.handlers import Queues

QUEUE = "/queues/{queue}"
NDJSON = "application/x-ndjson"


def queue_routes(face: Queues) -> list[Route]:
    def call(method: str, path: str, handler: Any, summary: str, right: Any, **rest: Any) -> Route:
        return Route(method=method, path=path, handler=handler, summary=summary, right=right, tag="queues", **rest)

    one_queue = {200: shapes.QueueView}
    return [
        call(
            "POST",
            "/queues",
            face.create,
            "Create a queue; 200 if it exists just so",
            "admin",
            body=shapes.CreateQueue,
            answers={201: shapes.QueueView, 200: shapes.QueueView},
            errors=(409,),
        ),
        call(
            "GET",
            "/queues",
            face.list_all,
            "List queues",
            "admin",
            query=shapes.ListQuery,
            answers={200: shapes.QueueList},
        ),
        call("GET", QUEUE, face.show, "Show a queue", "read", answers=one_queue),
        call("PATCH", QUEUE, face.change, "Change options", "admin", body=shapes.OptionChanges, answers=one_queue),
        call(
            "DELETE",
            QUEUE,
            face.drop,
            "Delete a queue; with force, also what it holds",
            "admin",
            query=shapes.DropQuery,
            answers={200: shapes.Dropped},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/messages",
            face.push,
            "Push one message, or many, or NDJSON; 200 if one was there already",
            "push",
            body=shapes.PushBody,
            body_types=("application/json", NDJSON),
            answers={201: (shapes.PushedOne, shapes.PushedMany), 200: shapes.PushedOne},
            headers=("Idempotency-Key", "X-Penstock-Signature", "traceparent"),
        ),
        call(
            "POST",
            f"{QUEUE}/poll",
            face.poll,
            "Lease messages, waiting for the first, 20 s unless wait_ms or the setting wait_ms_default says otherwise;"
            " the body may ack the last batch",
            "consume",
            query=shapes.PollQuery,
            body=shapes.PollBody,
            body_required=False,
            answers={200: shapes.Polled},
            hands_out=True,
        ),
        call(
            "POST",
            f"{QUEUE}/ack",
            face.ack,
            "Done: archive or delete",
            "consume",
            body=shapes.AckBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/nack",
            face.nack,
            "Failed: try again later, or die",
            "consume",
            body=shapes.NackBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/release",
            face.release,
            "Give back what was not begun: no attempt is used up",
            "consume",
            body=shapes.AckBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/extend",
            face.extend,
            "Keep a lease longer",
            "consume",
            body=shapes.ExtendBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/transact",
            face.transact,
            "Ack, nack and push, all or nothing",
            "consume",
            body=shapes.TransactBody,
            answers={200: shapes.TransactedView},
            errors=(409,),
        ),
        call("GET", f"{QUEUE}/stats", face.stats, "Counts, ages, rates", "read", answers={200: shapes.StatsView}),
        call(
            "GET",
            f"{QUEUE}/peek",
            face.peek,
            "Look at messages without leasing them",
            "consume",
            query=shapes.PeekQuery,
            answers={200: shapes.MessagePage},
        ),
        call("GET", f"{QUEUE}/messages/{{id}}", face.get, "One message", "consume", answers={200: shapes.MessageView}),
        call("DELETE", f"{QUEUE}/messages/{{id}}", face.remove, "Remove one", "admin", answers={200: shapes.Done}),
        call(
            "POST",
            f"{QUEUE}/purge",
            face.purge,
            "Remove all that is still to be leased",
            "admin",
            query=shapes.PurgeQuery,
            answers={200: shapes.Purged},
        ),
        call("POST", f"{QUEUE}/pause", face.pause, "Stop leases, not pushes", "admin", answers=one_queue),
        call("POST", f"{QUEUE}/resume", face.resume, "Let leases go on", "admin", answers=one_queue),
        call("POST", f"{QUEUE}/compact", face.compact, "Give free space back", "admin", answers={200: shapes.Done}),
        call(
            "GET",
            f"{QUEUE}/dlq",
            face.dead,
            "Dead letters, newest first, with their errors",
            "consume",
            query=shapes.PageQuery,
            answers={200: shapes.MessagePage},
        ),
        call(
            "POST",
            f"{QUEUE}/dlq/requeue",
            face.requeue,
            "Give dead letters a new life in their queue",
            "admin",
            body=shapes.RequeueBody,
            body_required=False,
            answers={200: shapes.Requeued},
        ),
        call(
            "POST",
            f"{QUEUE}/dlq/purge",
            face.purge_dead,
            "Remove all dead letters",
            "admin",
            query=shapes.PurgeQuery,
            answers={200: shapes.Purged},
        ),
        call(
            "GET",
            f"{QUEUE}/events",
            face.streams.events,
            "What happens here, as server-sent events",
            "read",
            answers={200: "text/event-stream"},
            headers=("Last-Event-ID",),
        ),
        call("GET", f"{QUEUE}/export", face.streams.export, "All messages, as NDJSON", "admin", answers={200: NDJSON}),
        call(
            "POST",
            f"{QUEUE}/import",
            face.streams.import_,
            "Take an export back",
            "admin",
            body=shapes.ImportedMessage,
            body_types=(NDJSON,),
            body_required=False,
            answers={200: shapes.Imported},
        ),
        call(
            "POST",
            f"{QUEUE}/keys",
            face.add_key,
            "Make an API key; it is shown once",
            "admin",
            body=shapes.NewKey,
            body_required=False,
            answers={201: shapes.KeyView},
            errors=(409,),
        ),
        call("GET", f"{QUEUE}/keys", face.list_keys, "List API keys", "admin", answers={200: shapes.KeyList}),
        call("DELETE", f"{QUEUE}/keys/{{key}}", face.remove_key, "Revoke a key", "admin", answers={200: shapes.Done}),
    ]
