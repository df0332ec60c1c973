"""Routes of the queue API."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.server.routing import Route
from penstock.wire import queues as shapes
from penstock.wire.binary_batches import MSGPACK

if TYPE_CHECKING:
    from penstock.server.api.queues.handlers import Queues

QUEUE = "/queues/{queue}"
NDJSON = "application/x-ndjson"
BINARY = MSGPACK.decode()


def queue_routes(api: Queues) -> list[Route]:
    call = partial(Route, tag="queues")
    one_queue = {200: shapes.QueueView}
    return [
        call(
            "POST",
            "/queues",
            api.create,
            "Create a queue; 200 if it exists with the same options",
            "admin",
            body=shapes.CreateQueue,
            answers={201: shapes.QueueView, 200: shapes.QueueView},
            errors=(409,),
        ),
        call(
            "GET",
            "/queues",
            api.list_all,
            "List queues",
            "admin",
            query=shapes.ListQuery,
            answers={200: shapes.QueueList},
        ),
        call("GET", QUEUE, api.show, "Show a queue", "read", answers=one_queue),
        call("PATCH", QUEUE, api.change, "Change options", "admin", body=shapes.OptionChanges, answers=one_queue),
        call(
            "DELETE",
            QUEUE,
            api.drop,
            "Delete a queue; with force, also its messages",
            "admin",
            query=shapes.DropQuery,
            answers={200: shapes.Dropped},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/messages",
            api.push,
            "Push one or many messages, NDJSON or a binary batch; 200 for a duplicate",
            "push",
            body=shapes.PushBody,
            body_types=("application/json", NDJSON, BINARY),
            answers={201: (shapes.PushedOne, shapes.PushedMany, BINARY), 200: shapes.PushedOne},
            headers=("Idempotency-Key", "X-Penstock-Signature", "traceparent"),
        ),
        call(
            "POST",
            f"{QUEUE}/poll",
            api.poll,
            "Lease messages; wait_ms (default: the setting wait_ms_default, 20 s) waits for the first;"
            " the body may ack the last batch",
            "consume",
            query=shapes.PollQuery,
            body=shapes.PollBody,
            body_types=("application/json", BINARY),
            body_required=False,
            answers={200: (shapes.Polled, BINARY)},
            hands_out=True,
        ),
        call(
            "POST",
            f"{QUEUE}/ack",
            api.ack,
            "Acknowledge messages as done; they are archived or deleted",
            "consume",
            body=shapes.AckBody,
            body_types=("application/json", BINARY),
            answers={200: (shapes.SettledItems, BINARY)},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/nack",
            api.nack,
            "Report failures; messages are retried later or dead-lettered",
            "consume",
            body=shapes.NackBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/release",
            api.release,
            "Release unstarted messages without using up an attempt",
            "consume",
            body=shapes.AckBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/extend",
            api.extend,
            "Extend leases",
            "consume",
            body=shapes.ExtendBody,
            answers={200: shapes.SettledItems},
            errors=(409,),
        ),
        call(
            "POST",
            f"{QUEUE}/transact",
            api.transact,
            "Ack, nack and push in one transaction",
            "consume",
            body=shapes.TransactBody,
            answers={200: shapes.TransactedView},
            errors=(409,),
        ),
        call("GET", f"{QUEUE}/stats", api.stats, "Show counts, ages and rates", "read", answers={200: shapes.Stats}),
        call(
            "GET",
            f"{QUEUE}/peek",
            api.peek,
            "Read messages without leasing them",
            "consume",
            query=shapes.PeekQuery,
            answers={200: shapes.MessagePage},
        ),
        call(
            "GET", f"{QUEUE}/messages/{{id}}", api.get, "Show a message", "consume", answers={200: shapes.MessageView}
        ),
        call("DELETE", f"{QUEUE}/messages/{{id}}", api.remove, "Remove a message", "admin", answers={200: shapes.Done}),
        call(
            "POST",
            f"{QUEUE}/purge",
            api.purge,
            "Remove all ready and scheduled messages",
            "admin",
            query=shapes.PurgeQuery,
            answers={200: shapes.Purged},
        ),
        call("POST", f"{QUEUE}/pause", api.pause, "Pause leasing; pushes continue", "admin", answers=one_queue),
        call("POST", f"{QUEUE}/resume", api.resume, "Resume leasing", "admin", answers=one_queue),
        call(
            "POST",
            f"{QUEUE}/compact",
            api.compact,
            "Return free space to the file system",
            "admin",
            answers={200: shapes.Done},
        ),
        call(
            "GET",
            f"{QUEUE}/dlq",
            api.dead,
            "List dead letters with their errors, newest first",
            "consume",
            query=shapes.PageQuery,
            answers={200: shapes.MessagePage},
        ),
        call(
            "POST",
            f"{QUEUE}/dlq/requeue",
            api.requeue,
            "Move dead letters back into their queue",
            "admin",
            body=shapes.RequeueBody,
            body_required=False,
            answers={200: shapes.Requeued},
        ),
        call(
            "POST",
            f"{QUEUE}/dlq/purge",
            api.purge_dead,
            "Remove all dead letters",
            "admin",
            query=shapes.PurgeQuery,
            answers={200: shapes.Purged},
        ),
        call(
            "GET",
            f"{QUEUE}/events",
            api.streams.events,
            "Follow events as server-sent events",
            "read",
            answers={200: "text/event-stream"},
            headers=("Last-Event-ID",),
        ),
        call(
            "GET",
            f"{QUEUE}/export",
            api.streams.export,
            "Export all messages as NDJSON",
            "admin",
            answers={200: NDJSON},
        ),
        call(
            "POST",
            f"{QUEUE}/import",
            api.streams.import_,
            "Import an export",
            "admin",
            body=shapes.ImportedMessage,
            body_types=(NDJSON,),
            body_required=False,
            answers={200: shapes.Imported},
        ),
        call(
            "POST",
            f"{QUEUE}/keys",
            api.add_key,
            "Make an API key; it is shown once",
            "admin",
            body=shapes.NewKey,
            body_required=False,
            answers={201: shapes.KeyView},
            errors=(409,),
        ),
        call("GET", f"{QUEUE}/keys", api.list_keys, "List API keys", "admin", answers={200: shapes.KeyList}),
        call("DELETE", f"{QUEUE}/keys/{{key}}", api.remove_key, "Revoke a key", "admin", answers={200: shapes.Done}),
    ]
