"""Authorization: tokens, API keys, signatures, and requests from browsers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.errors import InvalidInput
from penstock.server import auth, signatures
from penstock.server.serve import check_exposure
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running, running

TOKEN = "s3cret-token"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("guarded"), auth_token=TOKEN) as server:
        yield server


@pytest.fixture
def admin(guarded: Running) -> Iterator[Client]:
    with guarded.client() as client:
        yield client


# The token


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/stats", "/health", "/queues", "/metrics"])
@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer wrong", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_a_missing_token_is_401(guarded: Running, path: str, value: str | None) -> None:
    with Client("127.0.0.1", guarded.port) as client:
        answer = client.get(path, **({} if value is None else {"Authorization": value}))
        assert (answer.status, answer.json["code"]) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_everything_is_allowed_with_the_token(admin: Client) -> None:
    for path in ("/v1/stats", "/health", "/queues", "/metrics"):
        assert admin.get(path).status == 200


def test_some_paths_need_no_token(guarded: Running) -> None:
    with Client("127.0.0.1", guarded.port) as client:
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert client.get(path).status == 200


def test_credentials_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, guarded: Running) -> None:
    seen: list[Any] = []
    compare = hmac.compare_digest

    def spy(left: Any, right: Any) -> bool:
        seen.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(auth.hmac, "compare_digest", spy)
    with Client("127.0.0.1", guarded.port, "guess") as client:
        client.get("/queues")
    assert (b"guess", TOKEN.encode()) in seen
    assert signatures.hmac.compare_digest is spy


# Keys


def new_key(admin: Client, queue: str, *rights: str) -> dict[str, Any]:
    answer = admin.post(f"{queue}/keys", {"name": "test", "rights": rights})
    assert answer.status == 201
    key: dict[str, Any] = answer.json
    return key


def test_each_right_allows_its_calls_and_no_others(guarded: Running, admin: Client, name: str) -> None:
    queue, other = admin.queue(name), admin.queue(f"{name}-other")
    message = {"payload": 1}
    calls: list[tuple[str, str, Any, set[str]]] = [
        ("POST", f"{queue}/messages", message, {"push"}),
        ("POST", f"{queue}/poll?wait_ms=0", None, {"consume"}),
        ("POST", f"/queues/{name}.dlq/poll?wait_ms=0", None, {"consume"}),
        ("GET", f"{queue}/peek", None, {"consume"}),
        ("GET", f"{queue}/dlq", None, {"consume"}),
        ("GET", f"{queue}/stats", None, {"push", "consume"}),
        ("GET", queue, None, {"push", "consume"}),
        ("POST", f"{queue}/pause", None, set()),
        ("POST", f"{queue}/resume", None, set()),
        ("POST", f"{queue}/purge", None, set()),
        ("GET", f"{queue}/keys", None, set()),
        ("GET", f"{queue}/export", None, set()),
        ("PATCH", queue, {}, set()),
    ]
    for right in ("push", "consume", "admin"):
        with guarded.client(new_key(admin, queue, right)["key"]) as client:
            for method, path, body, rights in calls:
                allowed = right == "admin" or right in rights
                answer = client.ask(method, path, body)
                assert answer.status == (403 if not allowed else 201 if method + path[-9:] == "POST/messages" else 200)
            for method, path, body in (
                ("POST", f"{other}/messages", message),
                ("GET", other, None),
                ("GET", "/queues", None),
                ("POST", "/queues", {"name": "x"}),
                ("GET", "/metrics", None),
                ("GET", "/v1/messages", None),
            ):
                refused = client.ask(method, path, body)
                assert (refused.status, refused.json["code"]) == (403, "forbidden")


def test_a_key_cannot_reach_another_queue_by_a_transaction(guarded: Running, admin: Client, name: str) -> None:
    queue = admin.queue(name)
    admin.queue(f"{name}-other")
    with guarded.client(new_key(admin, queue, "consume")["key"]) as client:
        assert client.post(f"{queue}/transact", {"push": [{"payload": 1}]}).status == 403
        assert client.post(f"{queue}/transact", {"push": [{"payload": 1, "queue": f"{name}-other"}]}).status == 403
        assert (
            client.post(f"{queue}/transact", {"ack": [{"id": 1, "token": "0", "queue": f"{name}-other"}]}).status == 403
        )
        assert client.post(f"{queue}/ack", {"id": 1}).status == 403


def test_a_key_is_shown_once_and_stored_hashed(guarded: Running, admin: Client, name: str) -> None:
    queue = admin.queue(name)
    key = new_key(admin, queue, "push")
    [listed] = admin.get(f"{queue}/keys").json["keys"]
    assert listed == {name: value for name, value in key.items() if name != "key"}
    with sqlite3.connect(f"file:{guarded.path}?mode=ro", uri=True) as database:
        rows = [row for (row,) in database.execute("SELECT hash FROM penstock_api_key WHERE id = ?", (key["id"],))]
        text = "\n".join(database.iterdump())
    database.close()
    assert rows == [hashlib.sha256(key["key"].encode()).digest()]
    assert key["key"] not in text


def test_a_revoked_key_is_refused_at_once(guarded: Running, admin: Client, name: str) -> None:
    queue = admin.queue(name)
    key = new_key(admin, queue, "push")
    with guarded.client(key["key"]) as client:
        assert client.post(f"{queue}/messages", {"payload": 1}).status == 201
        assert admin.delete(f"{queue}/keys/{key['id']}").status == 200
        assert client.post(f"{queue}/messages", {"payload": 1}).status == 401
    assert admin.delete(f"{queue}/keys/{key['id']}").json["code"] == "unknown_key"


def test_a_forged_secret_with_a_true_id_is_refused(guarded: Running, admin: Client, name: str) -> None:
    key = new_key(admin, admin.queue(name), "push")
    with guarded.client(key["key"][:-1] + "!") as client:
        assert client.get(f"/queues/{name}").status == 401


def test_an_invalid_key_is_neither_searched_nor_cached(guarded: Running) -> None:
    guarded.app.gate.forget_keys()
    with Client("127.0.0.1", guarded.port) as stranger:
        for key in ("pk_" + "x" * 50_000, "pk_" + "0" * 50_000 + "_x", "pk_q_x"):
            assert stranger.get("/queues", Authorization=f"Bearer {key}").status == 401
        offered = base64.urlsafe_b64encode(b"pk_0123456789a\0_x").rstrip(b"=").decode()
        assert stranger.get("/ws/dashboard", Sec_WebSocket_Protocol=f"bearer.{offered}").status == 401
    assert not guarded.app.gate._keys


def test_keys_need_known_rights(admin: Client, name: str) -> None:
    queue = admin.queue(name)
    assert admin.post(f"{queue}/keys", {"rights": ["fly"]}).status == 422
    assert admin.post(f"{queue}/keys", {"rights": []}).status == 422
    assert admin.post(f"{queue}/keys").json["rights"] == ["push", "consume"]


# Signatures

SECRET = "a secret of sixteen or more"


def sign(payload: bytes, *, at_ms: int | None = None, secret: str = SECRET) -> str:
    stamp = str(int(time.time() * 1000) if at_ms is None else at_ms)
    digest = hmac.new(secret.encode(), stamp.encode() + b"." + payload, hashlib.sha256).hexdigest()
    return f"t={stamp},v1={digest}"


def test_a_signed_message_is_accepted_and_delivered_verbatim(client: Client, name: str) -> None:
    queue = client.queue(name, secret=SECRET)
    payload = b'{"b": 1,  "a":[1.50]}'
    signature = sign(payload)
    body = b'{"payload":' + payload + b"}"
    assert client.post(f"{queue}/messages", body, X_Penstock_Signature=signature).status == 201
    answer = client.post(f"{queue}/poll?wait_ms=0")
    assert payload in answer.body
    assert answer.json["messages"][0]["headers"]["penstock-signature"] == signature


BAD_SIGNATURES: dict[str, tuple[Callable[[], str | None], str]] = {
    "missing": (lambda: None, "unsigned"),
    "nonsense": (lambda: "nonsense", "bad_signature"),
    "empty": (lambda: "t=1,v1=", "bad_signature"),
    "digits of another script": (lambda: "t=٣,v1=ab", "bad_signature"),
    "far too late": (lambda: f"t={'9' * 30},v1=ab", "bad_signature"),
    "stale": (lambda: sign(b"1", at_ms=1), "stale_signature"),
    "of another payload": (lambda: sign(b"2"), "bad_signature"),
    "by another secret": (lambda: sign(b"1", secret="another secret of enough"), "bad_signature"),
    "not hexadecimal": (lambda: sign(b"1")[:-1] + "é", "bad_signature"),
}


@pytest.mark.parametrize("kind", BAD_SIGNATURES)
def test_an_unsigned_stale_or_tampered_message_is_refused(client: Client, name: str, kind: str) -> None:
    queue = client.queue(name, secret=SECRET)
    make, code = BAD_SIGNATURES[kind]
    signature = make()
    answer = client.post(f"{queue}/messages", {"payload": 1, **({"signature": signature} if signature else {})})
    assert (answer.status, answer.json["code"], answer.json["field"]) == (422, code, "signature")


def test_each_message_of_a_batch_needs_a_signature(client: Client, name: str) -> None:
    queue = client.queue(name, secret=SECRET)
    good = [{"payload": n, "signature": sign(b"%d" % n)} for n in range(3)]
    assert client.post(f"{queue}/messages", {"messages": good}).status == 201
    assert client.post(f"{queue}/messages", {"messages": [*good, {"payload": 9}]}).status == 422
    lines = b"\n".join(json.dumps(each).encode() for each in good)
    assert client.post(f"{queue}/messages", lines, content_type="application/x-ndjson").status == 201
    assert client.post(f"{queue}/messages", b'{"payload":1}', content_type="application/x-ndjson").status == 422
    assert client.post(f"{queue}/transact", {"push": [{"payload": 1}]}).status == 422
    assert client.get(f"{queue}/stats").json["ready"] == 6


def test_no_api_bypasses_the_signature(client: Client, name: str) -> None:
    client.queue(name, secret=SECRET)
    assert client.post("/v1/messages", {"body": "x", "topic": name}).json["code"] == "unsigned"
    signed = client.post("/v1/messages", {"body": "x", "topic": name}, X_Penstock_Signature=sign(b"x"))
    assert signed.status == 201


def test_a_secret_can_be_set_changed_and_removed(client: Client, name: str) -> None:
    queue = client.queue(name)
    assert client.post(f"{queue}/messages", {"payload": 1}).status == 201
    assert client.ask("PATCH", queue, {"secret": SECRET}).status == 200
    assert client.post(f"{queue}/messages", {"payload": 1}).status == 422
    assert SECRET not in client.get(queue).body.decode()
    assert client.post("/queues", {"name": name, "secret": SECRET}).status == 200
    assert client.post("/queues", {"name": name, "secret": SECRET + "x"}).status == 409
    assert client.ask("PATCH", queue, {"secret": None}).status == 200
    assert client.post(f"{queue}/messages", {"payload": 1}).status == 201


# Browsers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8888"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8888"}, 200),
        ({"Host": "127.0.0.2:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8888"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "localhost:8888", "Origin": "http://localhost:8888"}, 200),
        ({"Host": "localhost:8888", "Origin": "http://localhost:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_without_a_token_web_pages_are_refused(client: Client, headers: dict[str, str], status: int) -> None:
    assert client.get("/v1/messages?topic=none", **headers).status == status
    assert client.post("/v1/messages", {"body": "x", "topic": "t"}, **headers).status == (201 if status == 200 else 403)


def test_a_form_post_is_refused_by_its_content_type(client: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post("/v1/messages", b'{"body":"x"}', content_type=kind)
        assert (answer.status, answer.json["code"]) == (415, "wrong_content_type")


def test_any_host_is_allowed_with_a_token(admin: Client) -> None:
    assert admin.get("/queues", Host="queue.example", Origin="https://app.example").status == 200


def test_cors_is_off_by_default(admin: Client) -> None:
    answer = admin.get("/queues", Origin="https://app.example")
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    preflight = admin.ask("OPTIONS", "/queues", Origin="https://app.example", Access_Control_Request_Method="POST")
    assert "Access-Control-Allow-Origin" not in preflight.headers


@pytest.mark.parametrize("origins", [["https://App.example/"], ["*"]])
def test_cors_applies_to_configured_origins(serve: Fresh, origins: list[str]) -> None:
    server = serve(cors_origins=origins, auth_token=TOKEN)
    with Client("127.0.0.1", server.port) as browser:
        preflight = browser.ask(
            "OPTIONS",
            "/queues/q/messages",
            Origin="https://app.example",
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization, content-type",
        )
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        assert "authorization" in preflight.headers["Access-Control-Allow-Headers"]
        refused = browser.get("/queues", Origin="https://app.example")
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (401, "https://app.example")
        assert refused.headers["Vary"] == "origin"
        plain = browser.get("/healthz")
        assert "Access-Control-Allow-Origin" not in plain.headers
        if origins != ["*"]:
            other = browser.get("/queues", Origin="https://other.example")
            assert "Access-Control-Allow-Origin" not in other.headers


def test_a_configured_origin_can_use_a_server_without_a_token(serve: Fresh) -> None:
    with serve(cors_origins=["https://app.example"]).client() as client:
        assert client.get("/queues", Origin="https://app.example").status == 200
        assert client.get("/queues", Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.168.1.1"}, True),
        ({"host": "machine.example"}, True),
        ({"host": "0.0.0.0", "auth_token": "x"}, False),
        ({"host": "0.0.0.0", "insecure": True}, False),
    ],
)
def test_listening_beyond_loopback_requires_a_token(settings: dict[str, Any], refused: bool) -> None:
    if refused:
        with pytest.raises(InvalidInput, match="without a token"):
            check_exposure(Settings(**settings))
    else:
        check_exposure(Settings(**settings))


def test_the_data_folder_is_created(tmp_path: Path) -> None:
    with running(tmp_path / "a" / "b") as server:
        assert server.path == tmp_path / "a" / "b" / "penstock.db"
