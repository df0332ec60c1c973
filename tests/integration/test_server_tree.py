"""The tree API over HTTP, endpoint by endpoint."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import Fresh, serving_from
from tests.integration.serving import Answer, Client, Running

PUSH, ACK, BATCH = "/api/v1/push", "/api/v1/ack", "/api/v1/ack/batch"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


def item(ns: str, payload: Any = "x", task: str = "t", queue: str = "q", **rest: Any) -> dict[str, Any]:
    return {"ns": ns, "task": task, "queue": queue, "payload": payload, **rest}


def push(client: Client, *items: dict[str, Any], status: int = 201, **config: bool) -> list[dict[str, Any]]:
    answer = client.post(PUSH, {"items": items, "config": config})
    assert answer.status == status, answer
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


def pop(client: Client, path: str, query: str = "batch=100") -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/pop/ns/{path}?{query}")
    assert answer.status in (200, 204), answer
    messages: list[dict[str, Any]] = answer.json["messages"] if answer.status == 200 else []
    return messages


SETTLED = {"status": "completed"}


def _id(message: dict[str, Any]) -> dict[str, Any]:
    return {"transactionId": message["transactionId"]}


def ack(client: Client, message: dict[str, Any], status: str = "completed", **rest: Any) -> Answer:
    return client.post(ACK, {"transactionId": message["transactionId"], "status": status, **rest})


def configure(client: Client, ns: str, queue: str = "q", **options: Any) -> Answer:
    return client.post("/api/v1/configure", {"ns": ns, "task": "t", "queue": queue, "options": options})


# Configuring


def test_configuring_a_queue_returns_every_option(client: Client, name: str) -> None:
    answer = configure(client, name, priority=10, ttl=3600, windowBuffer=0.5)
    assert answer.status == 201
    assert answer.json == {
        "ns": name,
        "task": "t",
        "queue": "q",
        "options": {
            "leaseTime": 300,
            "maxSize": None,
            "ttl": 3600,
            "retryLimit": 3,
            "retryDelay": 1000,
            "deadLetterQueue": True,
            "delayedProcessing": 0,
            "windowBuffer": 0.5,
            "priority": 10,
            "requireLeaseToken": False,
        },
    }


def test_configuring_again_changes_only_the_given_options(client: Client, name: str) -> None:
    configure(client, name, leaseTime=60, maxSize=10, retryDelay=5)
    options = configure(client, name, retryLimit=0, maxSize=None, deadLetterQueue=False, delayedProcessing=60).json
    assert options["options"]["leaseTime"] == 60
    shown = client.get(f"/queues/{name}%2Ft%2Fq").json["options"]
    assert (shown["max_attempts"], shown["max_size"], shown["dlq"], shown["delay_ms"]) == (1, None, False, 60_000)
    assert (shown["backoff"], shown["backoff_ms"]) == ("fixed", 5)


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "..", "x" * 256, "q.dlq"])
def test_a_bad_name_is_refused(client: Client, name: str, bad: str) -> None:
    answer = configure(client, name, queue=bad)
    assert (answer.status, answer.json["field"]) == (422, "queue")
    assert client.post(PUSH, {"items": [item(name, queue=bad)]}).status == 422


# Pushing


def test_a_first_push_creates_the_queue_with_the_defaults_of_the_tree(client: Client, name: str) -> None:
    [pushed] = push(client, item(name))
    assert pushed["id"] == pushed["transactionId"]
    assert pushed["status"] == "queued"
    options = client.get(f"/queues/{name}%2Ft%2Fq").json["options"]
    assert (options["lease_ms"], options["max_attempts"], options["backoff"]) == (300_000, 4, "fixed")


def test_a_missing_queue_is_404_if_it_must_exist(client: Client, name: str) -> None:
    answer = client.post(PUSH, {"items": [item(name)], "config": {"autoCreate": False}})
    assert (answer.status, answer.json["code"]) == (404, "unknown_queue")


def test_a_transaction_id_is_one_message_even_after_completion(client: Client, name: str) -> None:
    [first] = push(client, item(name, transactionId=f"{name}-1"))
    [again] = push(client, item(name, transactionId=f"{name}-1"))
    assert (again["status"], again["id"]) == ("duplicate", first["id"])
    [message] = pop(client, name)
    assert ack(client, message).status == 200
    assert push(client, item(name, transactionId=f"{name}-1"))[0]["status"] == "duplicate"


def test_a_transaction_id_of_another_queue_is_refused_with_an_error(client: Client, name: str) -> None:
    taken = item(name, queue="other", transactionId=f"{name}-1")
    push(client, item(name, transactionId=f"{name}-1"))
    alone = client.post(PUSH, {"items": [taken]})
    assert alone.status == 409, alone.json
    assert alone.json["code"] == "key_taken"
    refused, queued = push(client, taken, item(name, queue="other"), status=207)
    assert (refused["status"], refused["code"], queued["status"]) == ("failed", "key_taken", "queued")
    together = client.post(PUSH, {"items": [item(name, queue="other"), taken], "config": {"batchMode": True}})
    assert (together.status, len(pop(client, f"{name}/task/t/queue/other"))) == (409, 1)


def test_a_key_cannot_find_transaction_ids_of_other_queues(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    with server.client() as admin:
        push(admin, item("secret", transactionId="order-42"), item("mine"))
        key = admin.post("/queues/mine%2Ft%2Fq/keys").json["key"]
        with server.client(key) as client:
            pushed = client.post(PUSH, {"items": [item("mine", transactionId="order-42")]})
            assert pushed.status == 409, pushed.json
            assert pushed.json["code"] == "key_taken"
            acked = ack(client, {"transactionId": "order-42"})
            assert acked.status == 403
            assert b"secret" not in pushed.body + acked.body
        # Its own ids must not make messages of other keys duplicates either.
        with server.client(key) as client:
            push(client, item("mine", transactionId="order-43"))
        assert admin.post(PUSH, {"items": [item("other", transactionId="order-43")]}).status == 409


def test_a_transaction_id_is_free_again_when_its_queue_is_dropped(client: Client, name: str) -> None:
    [first] = push(client, item(name, "lost", transactionId=f"{name}-1"))
    assert client.delete(f"/queues/{name}%2Ft%2Fq?force=true").status == 200
    [again] = push(client, item(name, "kept", transactionId=f"{name}-1"))
    assert (again["status"], again["id"] != first["id"]) == ("queued", True)
    [message] = pop(client, name)
    assert (message["payload"], ack(client, message).status) == ("kept", 200)


def test_importing_an_export_into_its_own_queue_adds_nothing(client: Client, name: str) -> None:
    push(client, item(name), item(name, transactionId=f"{name}-1"))
    exported = client.get(f"/queues/{name}%2Ft%2Fq/export").body
    answer = client.post(f"/queues/{name}%2Ft%2Fq/import", exported, content_type="application/x-ndjson")
    assert answer.json == {"imported": 0, "duplicates": 2, "skipped": 0}


def test_the_uuid_of_a_message_is_not_a_transaction_id_of_another(client: Client, name: str) -> None:
    [first] = push(client, item(name))
    [again] = push(client, item(name, transactionId=first["transactionId"]))
    assert (again["status"], again["id"]) == ("duplicate", first["id"])
    elsewhere = client.post(PUSH, {"items": [item(name, queue="next", transactionId=first["transactionId"])]})
    assert elsewhere.status == 409, elsewhere.json
    assert elsewhere.json["code"] == "key_taken"


def test_items_succeed_or_fail_separately_and_in_order(client: Client, name: str) -> None:
    configure(client, name, maxSize=2)
    sent = [item(name, 1), item(name, 2, queue="free"), item(name, 3), item(name, 4)]
    pushed = push(client, *sent, status=207)
    assert [each["status"] for each in pushed] == ["queued", "queued", "queued", "failed"]
    assert pushed[3]["code"] == "queue_full"
    refused = client.post(PUSH, {"items": [item(name)]})
    assert (refused.status, refused.json["code"]) == (429, "queue_full")
    assert "Retry-After" in refused.headers


def test_a_push_in_batch_mode_is_all_or_nothing(client: Client, name: str) -> None:
    configure(client, name, maxSize=1)
    sent = [item(name, 1, queue="free"), item(name, 2), item(name, 3)]
    refused = client.post(PUSH, {"items": sent, "config": {"batchMode": True}})
    assert refused.status == 429
    assert pop(client, name) == []
    assert [each["status"] for each in push(client, *sent[:2], batchMode=True)] == ["queued", "queued"]


# Popping


def test_a_pop_by_scope_orders_by_queue_priority_then_age(client: Client, name: str) -> None:
    configure(client, name, queue="high", priority=5)
    push(client, item(name, 1), item(name, 2, task="u"), item(name, 3, queue="high"))
    assert [m["payload"] for m in pop(client, f"{name}/task/t/queue/high")] == [3]
    assert [m["payload"] for m in pop(client, f"{name}/task/u")] == [2]
    push(client, item(name, 4, queue="high"))
    assert [m["payload"] for m in pop(client, name)] == [4, 1]
    assert client.get(f"/api/v1/pop/ns/{name}").status == 204


def test_a_popped_message_has_its_fields(client: Client, name: str) -> None:
    [pushed] = push(client, item(name, {"a": [1]}, transactionId=f"{name}-tx"))
    [message] = pop(client, name)
    assert message["id"] == pushed["id"]
    assert message["transactionId"] == f"{name}-tx"
    assert (message["payload"], message["queue"], message["retryCount"]) == ({"a": [1]}, f"{name}/t/q", 0)
    assert message["leaseExpiresAt"] > message["createdAt"]
    assert "headers" not in message


def test_a_message_of_another_api_has_its_uuid_as_transaction_id(client: Client, name: str) -> None:
    client.queue(f"{name}/t/q")
    client.post(f"/queues/{name}%2Ft%2Fq/messages", {"payload": 1, "idempotency_key": "key"})
    [message] = pop(client, name)
    assert message["transactionId"] == message["id"]
    assert ack(client, message).status == 200


def test_timeout_and_batch_are_clamped(client: Client, name: str) -> None:
    push(client, *(item(name, number) for number in range(101)))
    assert len(pop(client, name, "batch=5000&timeout=99999999&wait=true")) == 100
    assert client.get(f"/api/v1/pop/ns/{name}?batch=0").status == 422


def test_a_consumer_that_waits_before_the_first_push_gets_it(server: Running, client: Client, name: str) -> None:
    found: list[dict[str, Any]] = []

    def wait() -> None:
        with server.client() as own:
            found.extend(pop(own, f"{name}/task/t/queue/q", "wait=true&timeout=60000"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    push(client, item(name, "first"))
    waiting.join(60)
    assert [message["payload"] for message in found] == ["first"]


@pytest.mark.parametrize(
    "path", ["/api/v1/pop/ns/{}/task/t/queue/q?wait=true&timeout=1", "/v1/messages?wait=0.001&topic={}"]
)
def test_waiting_for_a_queue_does_not_create_it(client: Client, name: str, path: str) -> None:
    assert client.get(path.format(name)).status in (200, 204)
    assert client.get(f"/queues?prefix={name}").json["queues"] == []


def test_an_unknown_option_is_refused_with_the_known_ones(client: Client, name: str) -> None:
    answer = configure(client, name, leaseTim=1)
    assert (answer.status, answer.json["field"]) == (422, "options.leaseTim")
    for option in ("leaseTime", "retryLimit", "requireLeaseToken"):
        assert option in answer.json["hint"]


def test_a_queue_may_require_the_lease_token(client: Client, name: str) -> None:
    assert configure(client, name, requireLeaseToken=True).json["options"]["requireLeaseToken"] is True
    push(client, item(name))
    [message] = pop(client, name)
    for answer in (ack(client, message), client.post(BATCH, {"acknowledgments": [{**SETTLED, **_id(message)}]})):
        assert (answer.status, answer.json["code"]) == (422, "lease_token_required")
    assert ack(client, message, leaseToken=message["leaseToken"]).status == 200


def test_a_missing_queue_is_empty(client: Client, name: str) -> None:
    assert client.get(f"/api/v1/pop/ns/{name}/task/t/queue/q").status == 204
    assert client.get(f"/api/v1/pop/ns/{name}/task/t/queue/q.dlq?wait=true&timeout=100").status == 204


# Settling


def test_a_completed_message_cannot_be_acked_again(client: Client, name: str) -> None:
    push(client, item(name))
    [message] = pop(client, name)
    done = ack(client, message)
    assert done.json.keys() == {"transactionId", "status", "completedAt"}
    assert done.json["status"] == "completed"
    assert ack(client, message).status == 404


def test_a_failed_message_is_retried_until_it_is_a_dead_letter(client: Client, name: str) -> None:
    configure(client, name, retryLimit=1, retryDelay=0)
    [pushed] = push(client, item(name))
    for retry, status, scheduled in ((0, "failed", True), (1, "dead_letter", False)):
        [message] = pop(client, name)
        assert message["retryCount"] == retry
        failed = ack(client, message, "failed", error="no")
        assert failed.json == {
            "transactionId": pushed["transactionId"],
            "status": status,
            "retryScheduled": scheduled,
        }
    [dead] = pop(client, f"{name}/task/t/queue/q.dlq")
    assert dead["id"] == pushed["id"]


def test_a_lease_token_fences_and_a_bare_id_means_the_current_lease(client: Client, name: str) -> None:
    configure(client, name, retryDelay=0)
    push(client, item(name))
    [first] = pop(client, name)
    ack(client, first, "failed")
    [second] = pop(client, name)
    stale = ack(client, first, leaseToken=first["leaseToken"])
    assert (stale.status, stale.json["code"]) == (409, "lease_lost")
    assert second["leaseToken"] != first["leaseToken"]
    assert ack(client, first).status == 200


def test_a_lease_taken_over_by_another_api_is_the_current_one(client: Client, name: str) -> None:
    push(client, item(name))
    [message] = pop(client, name)
    path = f"/queues/{name}%2Ft%2Fq"
    number = client.get(f"{path}/peek?state=leased").json["messages"][0]["id"]
    client.post(f"{path}/nack", {"id": number, "token": message["leaseToken"], "delay_ms": 0})
    assert ack(client, message).status == 409
    assert len(client.post(f"{path}/poll?wait_ms=0").json["messages"]) == 1
    assert ack(client, message).status == 200


@pytest.mark.parametrize("own", [True, False])
def test_a_lease_of_another_api_can_be_acked(client: Client, name: str, own: bool) -> None:
    [pushed] = push(client, item(name, transactionId=f"{name}-tx") if own else item(name))
    assert len(client.post(f"/queues/{name}%2Ft%2Fq/poll?wait_ms=0").json["messages"]) == 1
    assert ack(client, pushed).status == 200
    assert ack(client, pushed).status == 404


def test_each_item_of_a_batch_ack_is_settled_separately(client: Client, name: str) -> None:
    configure(client, name, queue="other")
    push(client, item(name, 1), item(name, 2, queue="other"), item(name, 3))
    one, two, three = pop(client, name)
    sent = [
        {"transactionId": one["transactionId"], "status": "completed"},
        {"transactionId": str(uuid.uuid4()), "status": "completed"},
        {"transactionId": two["transactionId"], "status": "failed", "error": "Connection timeout"},
        {"transactionId": three["transactionId"], "status": "completed", "leaseToken": "00"},
    ]
    answer = client.post(BATCH, {"acknowledgments": sent})
    assert answer.json["processed"] == 2
    assert [result["status"] for result in answer.json["results"]] == ["completed", "unknown", "failed", "stale"]
    assert answer.json["results"][2]["retryScheduled"] is True


def test_a_key_grants_access_to_its_own_queue_only(serve: Fresh) -> None:
    server = serve(auth_token="a-token")
    with server.client() as admin:
        for ns in ("mine", "theirs"):
            push(admin, item(ns))
        admin.queue("q")
        keys = [admin.post(f"/queues/{queue}/keys").json["key"] for queue in ("mine%2Ft%2Fq", "q")]
    with server.client(keys[0]) as client, server.client(keys[1]) as flat:
        assert client.post(PUSH, {"items": [item("mine"), item("theirs")]}).status == 403
        assert push(client, item("mine"))[0]["status"] == "queued"
        for path in ("mine", "mine/task/t", "theirs/task/t/queue/q"):
            assert client.get(f"/api/v1/pop/ns/{path}").status == 403
        [message, _] = pop(client, "mine/task/t/queue/q")
        assert flat.get("/api/v1/pop/ns/mine/task/t/queue/q").status == 403
        assert ack(flat, message).status == 403
        assert ack(client, message).status == 200
        assert configure(flat, "mine").status == 403
