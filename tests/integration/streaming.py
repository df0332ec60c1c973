"""Helpers for the stream tests: Arrow as bytes, and streams on a server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.integration.serving import Answer, Client

ARROW = "application/vnd.apache.arrow.stream"


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def rows(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of an Arrow response."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == ARROW
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return found


def create(client: Client, name: str, **options: Any) -> str:
    """Create a stream and return its path."""
    answer = client.post("/streams", {"name": name, **options})
    assert answer.status == 201, answer
    return "/streams/" + name.replace("/", "%2F")


def append(client: Client, path: str, *records: Any, **headers: str) -> Any:
    answer = client.post(f"{path}/records", {"records": list(records)}, **headers)
    assert answer.status in (200, 201), answer
    return answer.json


def data_of(client: Client, path: str, query: str = "") -> list[Any]:
    answer = client.get(f"{path}/records{query}")
    assert answer.status == 200, answer
    return [record["data"] for record in answer.json["records"]]
