"""Stream API keys, and what each right allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import penstock
from tests.integration.conftest import serving_from
from tests.integration.serving import Client, Running

ADMIN = "admin-token-of-this-test"


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with serving_from(request.param, tmp_path, auth_token=ADMIN) as server:
        yield server


@pytest.fixture
def admin(server: Running) -> Iterator[Client]:
    with server.client() as client:
        for name in ("clicks", "other"):
            assert client.post("/streams", {"name": name}).status == 201
        assert client.post("/queues", {"name": "clicks"}).status == 201
        yield client


def holder(server: Running, admin: Client, *rights: str) -> Client:
    made = admin.post("/streams/clicks/keys", {"rights": list(rights)})
    assert (made.status, made.json["stream"]) == (201, "clicks")
    return server.client(made.json["key"])


def test_a_push_key_only_appends_to_its_stream(server: Running, admin: Client) -> None:
    with holder(server, admin, "push") as client:
        assert client.post("/streams/clicks/records", {"records": ["a"]}).status == 201
        assert client.get("/streams/clicks").status == 200
        for answer in (
            client.post("/streams/other/records", {"records": ["a"]}),
            client.get("/streams/clicks/records"),
            client.get("/streams"),
            client.delete("/streams/clicks"),
            client.post("/streams/clicks/trim"),
            client.post("/streams/clicks/keys"),
            client.post("/queues/clicks/messages", {"payload": 1}),
            client.get("/queues/clicks"),
            client.get("/queues"),
        ):
            assert (answer.status, answer.json["code"]) == (403, "forbidden"), answer


def test_a_consume_key_only_reads_and_commits(server: Running, admin: Client) -> None:
    admin.post("/streams/clicks/records", {"records": ["a", "b"]})
    with holder(server, admin, "consume") as client:
        assert [each["data"] for each in client.get("/streams/clicks/records").json["records"]] == ["a", "b"]
        assert len(client.get("/streams/clicks/next?consumer=c").json["records"]) == 2
        assert client.ask("PUT", "/streams/clicks/consumers/c", {"offset": 0}).status == 200
        assert client.delete("/streams/clicks/consumers/c").status == 200
        assert client.post("/streams/clicks/records", {"records": ["c"]}).status == 403
        assert client.ask("PATCH", "/streams/clicks", {"retention_ms": 1}).status == 403


def test_an_admin_key_of_a_stream_manages_that_stream(server: Running, admin: Client) -> None:
    with holder(server, admin, "admin") as client:
        assert client.post("/streams/clicks/records", {"records": ["a"]}).status == 201
        assert client.ask("PATCH", "/streams/clicks", {"retention_ms": 86_400_000}).status == 200
        assert client.get("/streams/clicks/keys").status == 200
        assert client.get("/streams/other/keys").status == 403


def test_a_queue_key_is_not_valid_for_a_stream_of_the_same_name(server: Running, admin: Client) -> None:
    key = admin.post("/queues/clicks/keys", {"rights": ["admin"]}).json["key"]
    with server.client(key) as client:
        assert client.get("/streams/clicks").status == 403
        assert client.get("/queues/clicks").status == 200


def test_a_revoked_key_and_the_keys_of_a_deleted_stream_are_refused(server: Running, admin: Client) -> None:
    with holder(server, admin, "push") as first, holder(server, admin, "push") as second:
        listed = admin.get("/streams/clicks/keys").json["keys"]
        assert [set(each) for each in listed] == [{"id", "stream", "name", "rights", "created_at"}] * 2
        assert admin.delete(f"/streams/clicks/keys/{listed[0]['id']}").status == 200
        assert admin.delete(f"/streams/clicks/keys/{listed[0]['id']}").status == 404
        statuses = {first.get("/streams/clicks").status, second.get("/streams/clicks").status}
        assert statuses == {401, 200}
        assert admin.delete("/streams/clicks").status == 200
        assert admin.post("/streams", {"name": "clicks"}).status == 201
        assert second.get("/streams/clicks").status == 401
    assert admin.post("/streams/nothing/keys").status == 404


def test_the_command_line_creates_lists_and_revokes_keys(server: Running, admin: Client) -> None:
    flags = ("--url", f"http://127.0.0.1:{server.port}", "--token", ADMIN, "--json")
    made = penstock("key", "add", "--stream", "clicks", "--right", "push", *flags)
    assert (made.code, made.json["stream"]) == (0, "clicks"), made
    assert [each["id"] for each in penstock("key", "list", "--stream", "clicks", *flags).json["keys"]] == [
        made.json["id"]
    ]
    assert penstock("key", "rm", "--stream", "clicks", "--id", made.json["id"], *flags).code == 0
    assert penstock("key", "list", *flags).code == 2
    assert penstock("key", "list", "--queue", "clicks", "--stream", "clicks", *flags).code == 2
