"""The tree face's calls, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.server.faces import tree_shapes as shapes
from penstock.server.routing import Route

if TYPE_CHECKING:
    from penstock.server.faces.tree import Tree

API = "/api/v1"
POP = f"{API}/pop/ns/{{ns}}"


def tree_routes(face: Tree) -> list[Route]:
    def call(method: str, path: str, handler: Any, summary: str, **rest: Any) -> Route:
        return Route(method=method, path=path, handler=handler, summary=summary, right="known", tag="tree", **rest)

    pop: dict[str, Any] = {"query": shapes.PopQuery, "answers": {200: shapes.Popped, 204: None}, "safe": False}
    return [
        call(
            "POST",
            f"{API}/configure",
            face.configure,
            "Make a queue, or change the options that are given",
            body=shapes.ConfigureBody,
            answers={201: shapes.Configured},
        ),
        call(
            "POST",
            f"{API}/push",
            face.push,
            "Push items, to any queues; missing queues are made",
            body=shapes.PushBody,
            answers={201: shapes.Pushed},
            errors=(409,),
        ),
        call("GET", POP, face.pop_namespace, "Lease from all queues of a namespace", **pop),
        call("GET", f"{POP}/task/{{task}}", face.pop_task, "Lease from all queues of a task", **pop),
        call("GET", f"{POP}/task/{{task}}/queue/{{name}}", face.pop_queue, "Lease from one queue", **pop),
        call(
            "POST",
            f"{API}/ack",
            face.ack,
            "Settle one message: completed, or failed",
            body=shapes.Acknowledgment,
            answers={200: shapes.Acknowledged},
            errors=(409,),
        ),
        call(
            "POST",
            f"{API}/ack/batch",
            face.ack_batch,
            "Settle many, each by itself",
            body=shapes.AckBatch,
            answers={200: shapes.AckedBatch},
        ),
    ]
