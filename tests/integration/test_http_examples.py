"""The curl calls of the original design documents, word for word."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.integration.command_line import PENSTOCK, clean_environment, penstock, server, wait_for_address

POST = r"""
curl -s -X POST localhost:8080/v1/messages \
  -H 'Content-Type: application/json' \
  -H 'Authorization: Bearer REPLACE_ME' \
  -d '{"body":"hello"}'
"""
GET = r"""
curl -s 'localhost:8080/v1/messages' \
  -H 'Authorization: Bearer REPLACE_ME'
"""
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def shell(command: str) -> Any:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def curl(address: str, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    """Return the status and the decoded response."""
    command = ["curl", "-s", "-X", method, "-w", "\n%{http_code}", f"{address}{path}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answer, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(answer)


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run an inbox server as its configuration describes it, but on a free port, and yield host:port."""
    folder = tmp_path_factory.mktemp("inbox")
    env = clean_environment(
        LISTEN_ADDR="127.0.0.1:0", DB_PATH=str(folder / "queue.db"), AUTH_TOKEN="REPLACE_ME", GET_LIMIT_DEFAULT="1"
    )
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([PENSTOCK, "serve"], env=env, cwd=folder, stdout=stderr, stderr=stderr)
    try:
        yield wait_for_address(process, log).removeprefix("http://")
        assert (folder / "queue.db").is_file()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("queues")) as address:
        yield address


def test_the_inbox_curl_examples_work(inbox: str) -> None:
    posted = shell(POST.replace("localhost:8080", inbox))
    assert posted.keys() == {"id", "timestamp", "body"}
    assert isinstance(posted["id"], int)
    assert posted["body"] == "hello"
    assert RFC_3339.fullmatch(posted["timestamp"])
    assert abs(datetime.fromisoformat(posted["timestamp"]).timestamp() - time.time()) < 300
    assert shell(GET.replace("localhost:8080", inbox)) == [posted]
    assert shell(GET.replace("localhost:8080", inbox)) == []


def test_the_inbox_has_the_documented_status_codes_limit_and_order(inbox: str) -> None:
    post = POST.replace("localhost:8080", inbox).replace("curl -s", "curl -s -o /dev/null -w '%{http_code}'")
    assert [shell(post) for _ in range(3)] == [201, 201, 201]
    get = GET.replace("localhost:8080", inbox)
    first = shell(get)
    rest = shell(get.replace("/v1/messages", "/v1/messages?limit=10"))
    assert (len(first), len(rest)) == (1, 2)
    ids = [message["id"] for message in first + rest]
    assert ids == sorted(ids)


def test_every_inbox_endpoint_requires_the_token(inbox: str) -> None:
    for path in ("/v1/messages", "/v1/messages?limit=1", "/health"):
        status, answer = curl(f"http://{inbox}", "GET", path)
        assert (status, answer["code"]) == (401, "unauthorized")
    health = GET.replace("localhost:8080", inbox).replace("/v1/messages", "/health")
    assert shell(health) == {"status": "ok"}


def test_every_call_of_the_queue_api_works(queue_server: str) -> None:
    call = queue_server
    status, made = curl(
        call, "POST", "/queues", '{"name": "q", "dlq": "q.dlq", "max_attempts": 5, "visibility_ms": 30000}'
    )
    assert (status, made["name"], made["max_attempts"], made["visibility_ms"]) == (201, "q", 5, 30_000)

    one = '{"payload": {"a": 1}, "priority": 1, "delay_ms": 0, "idempotency_key": "k"}'
    status, pushed = curl(call, "POST", "/queues/q/messages", one)
    assert (status, type(pushed["message_id"])) == (201, int)
    status, again = curl(call, "POST", "/queues/q/messages", one)
    assert again["message_id"] == pushed["message_id"]
    status, many = curl(call, "POST", "/queues/q/messages", '{"messages": [{"payload": 2}, {"payload": 3}]}')
    assert (status, len(many["message_ids"])) == (201, 2)

    status, polled = curl(call, "POST", "/queues/q/poll?batch=2")
    first, second = polled["messages"]
    assert (status, first["payload"], second["payload"]) == (200, {"a": 1}, 2)
    assert {"id", "payload", "lease_expires_at", "token"} <= first.keys()
    assert 0 < first["lease_expires_at"] - time.time() * 1000 < 31_000

    lease = json.dumps({"id": first["id"], "token": first["token"]})
    assert curl(call, "POST", "/queues/q/ack", lease)[0] == 200
    assert curl(call, "POST", "/queues/q/ack", lease)[0] == 200, "a repeated ack gets the first result"
    assert curl(call, "GET", f"/queues/q/messages/{first['id']}")[0] == 404, "an acked message is deleted"
    back = {"id": second["id"], "token": second["token"], "delay_ms": 60_000}
    assert curl(call, "POST", "/queues/q/nack", json.dumps(back))[0] == 200
    assert curl(call, "POST", "/queues/q/ack", json.dumps(back | {"delay_ms": None}))[0] in (400, 422)

    status, stats = curl(call, "GET", "/queues/q/stats")
    assert (stats["ready"], stats["scheduled"], stats["leased"], stats["dlq"]) == (1, 1, 0, 0)
    assert stats["oldest_age_ms"] >= 0
    for path in ("/healthz", "/readyz"):
        assert curl(call, "GET", path)[0] == 200

    status, peeked = curl(call, "GET", "/queues/q/peek?limit=10")
    assert [message["payload"] for message in peeked["messages"]] == [3]
    removed = many["message_ids"][1]
    assert curl(call, "DELETE", f"/queues/q/messages/{removed}")[0] == 200
    assert curl(call, "DELETE", f"/queues/q/messages/{removed}")[0] == 404


def test_the_queue_api_accepts_an_idempotency_key_header(queue_server: str) -> None:
    curl(queue_server, "POST", "/queues", '{"name": "headers"}')
    command = f"""curl -s {queue_server}/queues/headers/messages -H 'Idempotency-Key: once' \
        -H 'Content-Type: application/json' -d '{{"payload": "hello"}}'"""
    assert shell(command)["message_id"] == shell(command)["message_id"]


def test_the_queue_api_dead_letters_a_failing_message_and_requeues_it(queue_server: str) -> None:
    curl(queue_server, "POST", "/queues", '{"name": "poison", "max_attempts": 1}')
    curl(queue_server, "POST", "/queues/poison/messages", '{"payload": "bad"}')
    _, polled = curl(queue_server, "POST", "/queues/poison/poll?batch=1")
    lease = {"id": polled["messages"][0]["id"], "token": polled["messages"][0]["token"], "error": "cannot"}
    curl(queue_server, "POST", "/queues/poison/nack", json.dumps(lease))
    assert curl(queue_server, "GET", "/queues/poison/stats")[1]["dlq"] == 1
    requeued = penstock("queue", "requeue-dlq", "--name", "poison", "--url", queue_server, "--json")
    assert requeued.json == {"matched": 1, "moved": 1, "skipped": 0}
