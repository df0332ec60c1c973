"""Rules for every endpoint: parameters, headers, limits, and what each caller may see."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.config import load_settings
from penstock.errors import InvalidInput, StoreUnreachable
from penstock.server.tracing import start_tracing
from tests.integration.conftest import Fresh
from tests.integration.serving import Answer, Client, Running, running
from tests.integration.test_server_access import SECRET, sign

TOKEN = "s3cret-token"
WRONG_MAX = 20


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("guarded"), auth_token=TOKEN) as server:
        yield server


# Parameters


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/messages?topic=beta", {"body": "x"}),
        ("POST", "/v1/acks?limit=1", {"acks": [{"id": 1, "token": "x"}]}),
        ("POST", "{queue}/messages?delay_ms=5000", {"payload": 1}),
        ("POST", "{queue}/ack?id=1", {"id": 1}),
        ("PATCH", "{queue}?lease_ms=5", {}),
        ("POST", "{queue}/pause?force=true", None),
        ("POST", "/queues?name=x", {"name": "y"}),
        ("POST", "/api/v1/push?ns=n", {"items": [{"ns": "n", "task": "t", "queue": "q", "payload": 1}]}),
        ("POST", "/api/v1/ack?transactionId=x", {"transactionId": "x", "status": "completed"}),
        ("POST", "/streams?name=x", {"name": "y"}),
        ("GET", "{queue}?verbose=1", None),
        ("GET", "/v1/messages?topics=x", None),
    ],
)
def test_an_unknown_parameter_is_refused(client: Client, queue: str, method: str, path: str, body: Any) -> None:
    answer = client.ask(method, path.format(queue=queue), body)
    name = path.partition("?")[2].partition("=")[0]
    assert (answer.status, answer.json["field"]) == (422, name)
    assert name in answer.json["error"]
    assert client.get(f"{queue}/stats").json["ready"] == 0


def test_the_dashboard_can_be_opened_with_any_query(client: Client) -> None:
    assert client.get("/?from=mail").status == 200


@pytest.mark.parametrize(
    ("header", "body", "field"),
    [
        ("Idempotency-Key", {"payload": 1, "idempotency_key": "b"}, "idempotency_key"),
        ("Idempotency-Key", {"messages": [{"payload": 1}], "request_key": "b"}, "request_key"),
        ("X-Penstock-Signature", {"payload": 1, "signature": "b"}, "signature"),
    ],
)
def test_a_header_that_contradicts_a_field_is_refused(
    client: Client, queue: str, header: str, body: Any, field: str
) -> None:
    differing = client.post(f"{queue}/messages", body, **{header: "a"})
    assert (differing.status, differing.json["field"]) == (422, field)
    assert client.post(f"{queue}/messages", body, **{header: "b"}).status == 201
    assert client.get(f"{queue}/stats").json["ready"] == 1


def test_an_unknown_queue_option_is_refused_with_the_known_ones(client: Client, queue: str) -> None:
    answer = client.ask("PATCH", queue, {"max_atempts": 1})
    assert (answer.status, answer.json["field"]) == (422, "max_atempts")
    assert "max_attempts" in answer.json["hint"]


# Limits


def test_concurrent_polls_do_not_exceed_the_limit(serve: Fresh) -> None:
    server = serve(polls_max=2)
    with server.client() as client:
        queue = client.queue("q")
    links = [server.connect() for _ in range(8)]
    for link in links:
        link.sendall(f"POST {queue}/poll?wait_ms=500 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answers = sorted(link.recv(100)[9:12] for link in links)
    assert answers == [b"200"] * 2 + [b"429"] * 6
    for link in links:
        link.close()


def test_stats_of_the_inbox_include_topics_with_a_path(client: Client, name: str) -> None:
    topic = f"{name}/task/queue"
    client.post("/v1/messages", {"body": "x", "topic": topic})
    assert [each["new"] for each in client.get("/v1/stats").json["topics"] if each["topic"] == topic] == [1]


# Signatures


def test_an_import_into_a_signed_queue_accepts_only_signed_messages(client: Client, name: str) -> None:
    queue = client.queue(name, secret=SECRET)
    payload = b'{"n": 1}'
    # The message was created long ago, because an old export must be importable too.
    signed = {"payload": json.loads(payload), "content": "json", "headers": {"penstock-signature": ""}}
    line = json.dumps(signed).encode().replace(json.dumps(signed["payload"]).encode(), payload)
    good = line.replace(b'-signature": ""', b'-signature": "%s"' % sign(payload, at_ms=1_000).encode())
    forged = good.replace(b'"n": 1', b'"n": 2')
    for bad in (b'{"payload": 1}', forged):
        answer = _import(client, queue, bad)
        assert (answer.status, answer.json["field"]) == (422, "signature")
    assert _import(client, queue, good).json["imported"] == 1


def _import(client: Client, queue: str, lines: bytes) -> Answer:
    return client.post(f"{queue}/import", lines, content_type="application/x-ndjson")


# Credentials


@pytest.mark.parametrize("name", ["AUTH_TOKEN", "READ_TOKEN", "PENSTOCK_AUTH_TOKEN", "PENSTOCK_TOKEN"])
@pytest.mark.parametrize("token", [" ", "a b", "secret\n", "gehéim"])
def test_a_token_that_cannot_be_sent_in_a_header_is_refused(name: str, token: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        load_settings({}, {name: token})


def test_guessing_is_limited_without_locking_clients_out(serve: Fresh) -> None:
    guarded = serve(auth_token=TOKEN)
    with guarded.client() as worker, Client("127.0.0.1", guarded.port, "old-key") as stale:
        assert worker.get("/queues").status == 200
        statuses = {stale.get("/queues").status for _ in range(2 * WRONG_MAX)}
        assert statuses == {401}, "repeating the same wrong token does not count as guessing"
        for number in range(WRONG_MAX - 1):
            assert _guess(guarded, f"guess-{number}").status == 401
        refused = _guess(guarded, "one-more")
        assert (refused.status, refused.json["code"]) == (429, "too_many_failures")
        assert int(refused.headers["Retry-After"]) >= 1
        assert worker.get("/queues").status == 200


def _guess(server: Running, token: str) -> Answer:
    with Client("127.0.0.1", server.port, token) as client:
        return client.get("/queues")


# Visibility by caller


def test_responses_forbid_sniffing_and_caching(client: Client, queue: str) -> None:
    client.post(f"{queue}/messages", {"payload": 1})
    for path in ("/v1/messages", "/queues", f"{queue}/peek", "/healthz", "/openapi.json", "/docs", "/no/such/path"):
        headers = client.get(path).headers
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store"), path
    page = client.get("/").headers
    assert (page.get_all("Cache-Control"), page.get_all("X-Content-Type-Options")) == (["no-cache"], ["nosniff"])


def test_readiness_shows_causes_only_with_the_token(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> Any:
        raise StoreUnreachable("cannot reach db.internal.example:5432/orders", maybe_done=False)

    monkeypatch.setattr(guarded.app.broker.store, "list_queues", lost)
    with Client("127.0.0.1", guarded.port) as anyone, guarded.client() as admin:
        assert anyone.get("/readyz").json["checks"]["store"] == "failed"
        assert "db.internal" in admin.get("/readyz").json["checks"]["store"]
        assert anyone.get("/readyz").status == admin.get("/readyz").status == 503


def test_the_admin_key_of_one_queue_cannot_compact_the_store(guarded: Running) -> None:
    with guarded.client() as admin:
        queue = admin.queue("compacted")
        key = admin.post(f"{queue}/keys", {"rights": ["admin"]}).json["key"]
        with guarded.client(key) as holder:
            assert holder.post(f"{queue}/compact").status == 403
        assert admin.post(f"{queue}/compact").status == 200


def test_spans_carry_the_service_name_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # CI installs the OpenTelemetry SDK without the network exporter.
    exporter = types.ModuleType("trace_exporter")
    exporter.OTLPSpanExporter = InMemorySpanExporter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", exporter)

    def service() -> str:
        tracer = start_tracing()
        tracer.close()
        return str(tracer._provider.resource.attributes["service.name"])

    assert service() == "penstock"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-queue")
    assert service() == "orders-queue"
