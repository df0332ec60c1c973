"""Routes of the tree API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.server.routing import Right, Route
from penstock.wire import analytics
from penstock.wire import tree as shapes

if TYPE_CHECKING:
    from penstock.server.api.analytics import Analytics
    from penstock.server.api.tree.handlers import Tree

API = "/api/v1"
POP = f"{API}/pop/ns/{{ns}}"


def tree_routes(api: Tree) -> list[Route]:
    def call(method: str, path: str, handler: Any, summary: str, least_right: Right, **rest: Any) -> Route:
        return Route(
            method=method,
            path=path,
            handler=handler,
            summary=summary,
            right="authenticated",
            least_right=least_right,
            tag="tree",
            **rest,
        )

    pop: dict[str, Any] = {"query": shapes.PopQuery, "answers": {200: shapes.Popped, 204: None}, "safe": False}
    return [
        call(
            "POST",
            f"{API}/configure",
            api.configure,
            "Create a queue, or change the given options",
            "admin",
            body=shapes.ConfigureBody,
            answers={201: shapes.Configured},
        ),
        call(
            "POST",
            f"{API}/push",
            api.push,
            "Push items to any queues; missing queues are created",
            "push",
            body=shapes.PushBody,
            answers={201: shapes.Pushed, 207: shapes.Pushed},
            errors=(409,),
        ),
        call("GET", POP, api.pop_namespace, "Lease from all queues of a namespace", "consume", **pop),
        call("GET", f"{POP}/task/{{task}}", api.pop_task, "Lease from all queues of a task", "consume", **pop),
        call("GET", f"{POP}/task/{{task}}/queue/{{name}}", api.pop_queue, "Lease from one queue", "consume", **pop),
        call(
            "POST",
            f"{API}/ack",
            api.ack,
            "Acknowledge one message as completed or failed",
            "consume",
            body=shapes.Acknowledgment,
            answers={200: shapes.Acknowledged},
            errors=(409,),
        ),
        call(
            "POST",
            f"{API}/ack/batch",
            api.ack_batch,
            "Acknowledge many messages, each independently",
            "consume",
            body=shapes.AckBatch,
            answers={200: shapes.AckedBatch},
        ),
    ]


def analytics_routes(api: Analytics) -> list[Route]:
    def call(path: str, handler: Any, summary: str, answer: Any, query: Any = analytics.PageQuery) -> Route:
        return Route(
            "GET", f"{API}/analytics/{path}", handler, summary, "read", tag="tree", query=query, answers={200: answer}
        )

    return [
        call("queues", api.queues, "List all queues with options and counts", analytics.AllQueues),
        call("ns/{ns}", api.namespace, "Show a namespace and its queues", analytics.NamespaceStats),
        call("ns/{ns}/task/{task}", api.task, "Show a task and its queues", analytics.TaskStats),
        call("queue-depths", api.depths, "Pending and processing messages, by queue", analytics.Depths),
        call(
            "throughput",
            api.throughput,
            "Messages completed over time, over all queues",
            analytics.Throughput,
            analytics.HistoryQuery,
        ),
        call("latency", api.latency, "Wait and service times, by queue", analytics.Latencies),
    ]
