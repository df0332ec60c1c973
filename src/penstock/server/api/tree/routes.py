"""The tree face's calls, as data."""

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


def tree_routes(face: Tree) -> list[Route]:
    def call(method: str, path: str, handler: Any, summary: str, least_right: Right, **rest: Any) -> Route:
        return Route(
            method=method,
            path=path,
            handler=handler,
            summary=summary,
            right="known",
            least_right=least_right,
            tag="tree",
            **rest,
        )

    pop: dict[str, Any] = {"query": shapes.PopQuery, "answers": {200: shapes.Popped, 204: None}, "safe": False}
    return [
        call(
            "POST",
            f"{API}/configure",
            face.configure,
            "Make a queue, or change the options that are given",
            "admin",
            body=shapes.ConfigureBody,
            answers={201: shapes.Configured},
        ),
        call(
            "POST",
            f"{API}/push",
            face.push,
            "Push items, to any queues; missing queues are made",
            "push",
            body=shapes.PushBody,
            answers={201: shapes.Pushed, 207: shapes.Pushed},
            errors=(409,),
        ),
        call("GET", POP, face.pop_namespace, "Lease from all queues of a namespace", "consume", **pop),
        call("GET", f"{POP}/task/{{task}}", face.pop_task, "Lease from all queues of a task", "consume", **pop),
        call("GET", f"{POP}/task/{{task}}/queue/{{name}}", face.pop_queue, "Lease from one queue", "consume", **pop),
        call(
            "POST",
            f"{API}/ack",
            face.ack,
            "Settle one message: completed, or failed",
            "consume",
            body=shapes.Acknowledgment,
            answers={200: shapes.Acknowledged},
            errors=(409,),
        ),
        call(
            "POST",
            f"{API}/ack/batch",
            face.ack_batch,
            "Settle many, each by itself",
            "consume",
            body=shapes.AckBatch,
            answers={200: shapes.AckedBatch},
        ),
    ]


def analytics_routes(face: Analytics) -> list[Route]:
    def look(path: str, handler: Any, summary: str, answer: Any, query: Any = analytics.PageQuery) -> Route:
        return Route(
            method="GET",
            path=f"{API}/analytics/{path}",
            handler=handler,
            summary=summary,
            right="read",
            tag="tree",
            query=query,
            answers={200: answer},
        )

    return [
        look("queues", face.queues, "All queues, with their options and counts", analytics.AllQueues),
        look("ns/{ns}", face.namespace, "A namespace and its queues", analytics.NamespaceStats),
        look("ns/{ns}/task/{task}", face.task, "A task and its queues", analytics.TaskStats),
        look("queue-depths", face.depths, "How much waits and is worked on, by queue", analytics.Depths),
        look(
            "throughput",
            face.throughput,
            "Messages completed over time, in all queues",
            analytics.Throughput,
            analytics.HistoryQuery,
        ),
        look("latency", face.latency, "How long messages wait and take, by queue", analytics.Latencies),
    ]
