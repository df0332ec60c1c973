"""The SDK's public names, errors that cross the network, and the generated sync code."""

from __future__ import annotations

import copy
import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import aio, errors
from penstock.client import payloads, queue_json, response_errors, stream_json, types
from penstock.client.http11 import HttpResponse
from penstock.client.urls import ServerUrl, parse, request_headers
from penstock.core.commands import Settled
from penstock.core.model import QueueOptions, State
from penstock.wire.queues import Stats


def _is_decoder(value: object) -> bool:
    return isinstance(value, msgspec.json.Decoder) and issubclass(value.type, msgspec.Struct)


def test_every_public_name_exists_and_is_listed_in_order() -> None:
    for module in (penstock, aio):
        assert module.__all__ == sorted(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None
    every_error = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert every_error <= set(penstock.__all__)


def test_the_sync_and_async_sdk_have_the_same_methods() -> None:
    for name in ("Client", "Queue", "LeasedMessage", "Stream", "Transaction", "Worker"):
        ours = {each for each in dir(getattr(penstock, name)) if not each.startswith("__")}
        theirs = {each for each in dir(getattr(aio, name)) if not each.startswith("__")}
        assert ours == theirs


def test_the_generated_sync_code_is_up_to_date() -> None:
    tool = Path(__file__).parents[2] / "tools" / "unasync.py"
    assert subprocess.run([sys.executable, tool, "--check"], check=False).returncode == 0


def test_the_http_client_needs_only_the_basic_install() -> None:
    program = "import sys, penstock; penstock.connect('http://h'); print({'uvicorn', 'websockets'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("kind", response_errors.CLASSES.values())
def test_every_error_survives_the_network(kind: type[errors.PenstockError]) -> None:
    body = {"error": "queue 'q' still holds 7 messages: a, b", "code": kind.code, "hint": "do this", "field": "f"}
    answer = HttpResponse(422, {b"retry-after": b"3"}, msgspec.json.encode(body))
    error = response_errors.error_of(answer, "q", "http://h")
    assert type(error) is kind
    assert error.code == kind.code
    assert str(error) == str(copy.copy(error)) == f"{body['error']} (do this)"
    for name in ("queue", "message_id", "retry_after_ms", "field", "status", "messages", "differing"):
        if name in kind.__init__.__code__.co_names:
            assert hasattr(error, name), name


def test_server_only_codes_map_to_the_nearest_class() -> None:
    for status, code, kind in (
        (400, "malformed_json", errors.InvalidInput),
        (403, "foreign_host", errors.Forbidden),
        (404, "no_such_path", errors.NotFound),
        (413, "body_too_large", errors.BatchTooLarge),
        (429, "too_many_polls", errors.TryLater),
        (500, "internal_error", errors.ServerFault),
    ):
        answer = HttpResponse(status, {}, msgspec.json.encode({"error": "e", "code": code}))
        error = response_errors.error_of(answer, None, "http://h")
        assert type(error) is kind
        assert error.code == code


def test_an_unexpected_response_is_shown_with_its_address() -> None:
    answer = HttpResponse(502, {}, b"<h1>Bad\n  gateway</h1>")
    error = response_errors.error_of(answer, None, "http://h")
    assert (type(error), str(error)) == (errors.ServerFault, "http://h answered 502 <h1>Bad gateway</h1>")


@pytest.mark.parametrize(
    "decoder", [each for module in (queue_json, stream_json) for each in vars(module).values() if _is_decoder(each)]
)
def test_unknown_fields_of_a_newer_server_are_ignored(decoder: msgspec.json.Decoder[Any]) -> None:
    assert not decoder.type.__struct_config__.forbid_unknown_fields


def test_a_settled_message_in_an_unknown_state_is_decoded() -> None:
    sent = {"results": [{"id": 1, "result": "ok", "state": "parked"}, {"id": 2, "result": "postponed"}]}
    first, second = queue_json.settled.decode(msgspec.json.encode(sent)).results
    assert first.state == "parked"
    assert queue_json.settle_result(first.result) is Settled.OK
    assert queue_json.settle_result(second.result) is Settled.UNKNOWN


@pytest.mark.parametrize(
    ("content", "encoding", "payload", "expected"),
    [
        ("json", None, {"a": 1}, {"a": 1}),
        ("text", None, "a", "a"),
        ("bytes", "base64", "AQI=", b"\x01\x02"),
        ("avro", "base64", "AQI=", b"\x01\x02"),
        ("yaml", None, "a: 1", "a: 1"),
    ],
)
def test_a_message_with_unknown_content_or_state_is_delivered(
    content: str, encoding: str | None, payload: Any, expected: Any
) -> None:
    sent = {"id": 1, "uuid": "u", "content": content, "encoding": encoding, "payload": payload, "priority": 0}
    sent |= {"attempts": 1, "created_at": 1, "lease_expires_at": 2, "token": "t"}
    stored = sent | {"queue": "q", "state": "parked", "available_at": 1}
    leased = queue_json.delivery(queue_json.polled.decode(msgspec.json.encode({"messages": [sent]})).messages[0], "q")
    peeked = types.peeked(queue_json.stored_message(queue_json.message_view.decode(msgspec.json.encode(stored))))
    assert payloads.decode(leased.payload, leased.content) == peeked.payload == expected
    assert peeked.state == "parked"


def test_a_known_state_is_an_enum_member() -> None:
    sent = {"id": 1, "uuid": "u", "queue": "q", "state": "dead", "content": "json", "payload": 1, "priority": 0}
    sent |= {"attempts": 1, "created_at": 1, "available_at": 1}
    stored = queue_json.stored_message(queue_json.message_view.decode(msgspec.json.encode(sent)))
    assert stored.state is State.DEAD


def test_a_queue_with_unknown_options_and_values_is_decoded() -> None:
    sent: dict[str, Any] = {"name": "q", "max_attempts": 5, "visibility_ms": 1, "dlq": None, "paused": False}
    sent |= {"created_at": 1, "ready": 0, "scheduled": 0, "leased": 0, "dead": 0, "archived": 0, "totals": {}}
    sent["options"] = {"backoff": "linear", "max_attempts": 10**6, "colour": "red"}
    info = queue_json.queue_info(queue_json.queue_view.decode(msgspec.json.encode(sent)))
    assert info.options == QueueOptions(backoff="linear", max_attempts=10**6)  # type: ignore[arg-type]
    assert [
        queue_json.queue_info(each)
        for each in queue_json.queue_list.decode(msgspec.json.encode({"queues": [sent]})).queues
    ] == [info]


def test_a_stream_with_unknown_options_and_consumers_is_decoded() -> None:
    sent = {"name": "s", "created_at": 1, "first": 0, "next": 0, "bytes": 0, "segment_count": 1, "consumer_count": 1}
    found = stream_json.stream_info(
        stream_json.stream.decode(msgspec.json.encode(sent | {"options": {"segment_bytes": -1, "colour": "red"}}))
    )
    assert found.options.segment_bytes == -1
    reader = {"consumer": "c", "offset": 1, "lag": 0, "seen_at": 1, "created_at": 1, "kind": "mirror", "expired": False}
    assert stream_json.stream_consumer(stream_json.consumer.decode(msgspec.json.encode(reader))).kind == "mirror"


def test_statistics_of_a_0_1_0_server_are_decoded() -> None:
    """Version 0.1.0 sends neither `head_age_ms` nor `age_alert`."""
    sent = {"queue": "q", "paused": False, "ready": 1, "scheduled": 0, "leased": 0, "dead": 0, "dlq": 0, "archived": 0}
    sent |= {"oldest_age_ms": 5, "rates": {}, "error_rate": 0.0, "latency": {}, "totals": {}}
    stats = msgspec.json.decode(msgspec.json.encode(sent), type=Stats)
    assert (stats.oldest_age_ms, stats.head_age_ms, stats.age_alert) == (5, None, False)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://h", ServerUrl("http", "h", 80, "")),
        ("https://h/", ServerUrl("https", "h", 443, "")),
        ("http://[::1]:8888/queue", ServerUrl("http", "::1", 8888, "/queue")),
        ("http://bücher.example:1", ServerUrl("http", "xn--bcher-kva.example", 1, "")),
    ],
)
def test_a_server_url_is_parsed(url: str, server: ServerUrl) -> None:
    assert parse(url) == server
    assert b"\r\n\r\n" not in request_headers(server, "t")


@pytest.mark.parametrize("url", ["http://", "http://h:x", "http://u:p@h", "http://h?a=1", "http://h#a"])
def test_an_invalid_server_url_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidInput):
        parse(url)


def test_docstring_examples_of_the_types_run() -> None:
    assert doctest.testmod(types).failed == 0


def test_wide_payloads_do_not_count_as_deep() -> None:
    wide = [[number] for number in range(1000)]
    assert payloads.decode(*payloads.encode(wide)) == wide
