"""Produces messages in every state for the screens to show."""

from __future__ import annotations

from typing import Any

from tests.integration.serving import Client


def push(client: Client, queue: str, *payloads: Any, **options: Any) -> list[int]:
    body = {"messages": [{"payload": payload, **options} for payload in payloads]}
    answer = client.post(f"{queue}/messages", body)
    assert answer.status == 201, answer
    ids: list[int] = answer.json["message_ids"]
    return ids


def lease(client: Client, queue: str, batch: int = 1, worker: str = "w1") -> list[dict[str, Any]]:
    answer = client.post(f"{queue}/poll?batch={batch}&wait_ms=0&worker={worker}")
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


def ack(client: Client, queue: str, batch: int = 1) -> None:
    items = [{"id": each["id"], "token": each["token"]} for each in lease(client, queue, batch)]
    assert client.post(f"{queue}/ack", {"items": items}).status == 200


def die(client: Client, queue: str, *errors: str) -> list[int]:
    """Create a dead letter for each error. The queue must allow only one attempt."""
    ids = push(client, queue, *({"n": n} for n in range(len(errors))))
    leased = lease(client, queue, len(errors))
    items = [{"id": m["id"], "token": m["token"], "error": e} for m, e in zip(leased, errors, strict=True)]
    assert client.post(f"{queue}/nack", {"items": items}).status == 200
    return ids
