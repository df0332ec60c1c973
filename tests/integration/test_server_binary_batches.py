"""Batches in MessagePack have the same messages, errors and limits as in JSON, and the SDK speaks both."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client import batches
from penstock.core.ids import message_uuid
from penstock.server.http.messages import Request
from penstock.wire.binary_batches import BinaryMessage
from penstock.wire.signatures import sign
from tests.integration.client_support import Proxy, Sdk
from tests.integration.serving import Answer, Client, Running

BINARY = "application/vnd.msgpack"
HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "binary-batches.md"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

pytestmark = pytest.mark.timeout(60)


def push(client: Client, queue: str, body: Any, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else pack(body)
    return client.post(f"{queue}/messages", data, **{"content_type": BINARY, "accept": BINARY, **headers})


def poll(client: Client, queue: str, body: Any = None, *, batch: int = 100) -> list[Any]:
    data = None if body is None else pack(body)
    answer = client.post(f"{queue}/poll?wait_ms=0&batch={batch}", data, content_type=BINARY, accept=BINARY)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == BINARY
    found: list[Any] = unpack(answer.body)
    return found


def depth(client: Client, queue: str) -> int:
    shown = client.get(queue).json
    return int(shown["ready"] + shown["scheduled"] + shown["leased"])


def test_every_field_of_a_message_arrives(client: Client, queue: str, name: str) -> None:
    full = [b"\x00\xff", "bytes", -3, None, 60_000, "mine", {"a": "ä", "": ""}, "t=1,v1=00"]
    pushed = push(client, queue, [[full, [b'{"n":1}', "json"], ["text ä".encode(), "text"], [b"plain"]], "batch"])
    assert pushed.status == 201, pushed
    assert pushed.headers["content-type"] == BINARY
    ids, duplicates = unpack(pushed.body)
    assert duplicates == []
    [messages, acks] = poll(client, queue)
    assert acks is None
    assert [each[0] for each in messages] == [*ids[1:], ids[0]], "the lowest priority comes last"
    assert [(each[3], each[4]) for each in messages] == [
        (b'{"n":1}', "json"),
        ("text ä".encode(), "text"),
        (b"plain", "bytes"),
        (b"\x00\xff", "bytes"),
    ]
    id_, store_id, in_queue, _, _, priority, attempts, created_at, expires_at, token, key, headers = messages[-1]
    assert (in_queue, priority, attempts, key) == (name, -3, 1, "mine")
    assert headers == {"a": "ä", "": "", "penstock-signature": "t=1,v1=00"}
    shown = client.get(f"{queue}/messages/{id_}").json
    assert shown["uuid"] == message_uuid(id_, created_at, store_id)
    assert shown["lease_expires_at"] == expires_at
    assert shown["expires_at"] == created_at + 60_000
    acked = client.post(f"{queue}/ack", pack([[[id_, token]]]), content_type=BINARY, accept=BINARY)
    assert (acked.status, unpack(acked.body)) == (200, [["ok"]])


def test_a_delay_holds_a_message_back(client: Client, queue: str) -> None:
    assert push(client, queue, [[[b"later", "bytes", 0, 60_000]]]).status == 201
    assert poll(client, queue) == [[], None]
    assert client.get(queue).json["scheduled"] == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_any_bytes_arrive_unchanged(client: Client, name: str, payloads: list[bytes]) -> None:
    client.post("/queues", {"name": name})
    assert push(client, f"/queues/{name}", [[[each] for each in payloads]]).status == 201
    [messages, _] = poll(client, f"/queues/{name}")
    assert [each[3] for each in messages] == payloads
    poll(client, f"/queues/{name}", [[[each[0], each[9]] for each in messages]])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcä", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(json_values, min_size=1, max_size=8))
def test_json_is_the_same_in_both_forms(client: Client, name: str, values: list[Any]) -> None:
    client.post("/queues", {"name": name})
    queue = f"/queues/{name}"
    assert push(client, queue, [[[msgspec.json.encode(each), "json"] for each in values]]).status == 201
    polled = client.post(f"{queue}/poll?wait_ms=0&batch=100").json["messages"]
    assert [each["payload"] for each in polled] == values
    acks = {"acks": [{"id": each["id"], "token": each["token"]} for each in polled]}
    body = {"messages": [{"payload": each} for each in values]}
    assert client.post(f"{queue}/messages", body).status == 201
    answer = client.post(f"{queue}/poll?wait_ms=0&batch=100", acks, accept=BINARY)
    [messages, results] = unpack(answer.body)
    assert [(json.loads(each[3]), each[4]) for each in messages] == [(each, "json") for each in values]
    assert results == ["ok"] * len(values)
    poll(client, queue, [[[each[0], each[9]] for each in messages]])


def test_text_and_bytes_are_the_same_in_both_forms(client: Client, queue: str) -> None:
    push(client, queue, [[["ä\n".encode(), "text"], [b"\xff"]]])
    text, data = client.post(f"{queue}/poll?wait_ms=0&batch=9").json["messages"]
    assert (text["payload"], text["content"]) == ("ä\n", "text")
    assert (base64.b64decode(data["payload"]), data["encoding"], data["content"]) == (b"\xff", "base64", "bytes")
    body = {"messages": [{"payload": "ä\n", "encoding": "text"}, {"payload": "/w==", "encoding": "base64"}]}
    client.post(f"{queue}/messages", body)
    [messages, _] = poll(client, queue)
    assert [(each[3], each[4]) for each in messages] == [("ä\n".encode(), "text"), (b"\xff", "bytes")]


def test_a_repeated_request_adds_nothing(client: Client, queue: str) -> None:
    batch = [[b"a"], [b"b", "bytes", 0, None, None, "own"]]
    first = unpack(push(client, queue, [batch, "again"]).body)
    assert unpack(push(client, queue, [batch, "again"]).body) == [first[0], [0, 1]]
    assert unpack(push(client, queue, [batch], idempotency_key="again").body) == [first[0], [0, 1]]
    assert push(client, queue, [batch, "again"], idempotency_key="other").status == 422
    assert unpack(push(client, queue, [batch]).body)[1] == [1], "a message key is recognised in any request"
    assert depth(client, queue) == 3


def test_headers_of_the_request_apply(client: Client, name: str) -> None:
    secret = "0123456789abcdef"
    queue = client.queue(name, secret=secret)
    assert push(client, queue, [[[b"x"]]]).json["code"] == "unsigned"
    signed = [b"x", "bytes", 0, None, None, None, {"transaction-id": "t"}, sign(secret, b"x")]
    assert push(client, queue, [[[b"y", *signed[1:]]]]).json["code"] == "bad_signature"
    assert push(client, queue, [[signed]], x_penstock_signature=sign(secret, b"x")).status == 422
    assert push(client, queue, [[signed]], traceparent=TRACE).status == 201
    [[message], _] = poll(client, queue)
    assert message[11] == {"traceparent": TRACE, "penstock-signature": signed[7]}
    assert client.get(queue).json["totals"]["pushed"] == 1


GOOD = pack([[[b"first"], [b'"second"', "json"]]])
LONG = b"\xff\xff\xff\xff"
MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "malformed_msgpack"),
    "JSON": (b'{"messages":[{"payload":1}]}', 400, "wrong_type"),
    "trailing bytes": (GOOD + b"\x00", 400, "malformed_msgpack"),
    "a reserved type": (b"\x91\x91\x91\xc1", 400, "malformed_msgpack"),
    "a list of 4 billion": (b"\x91\xdd" + LONG, 413, "batch_too_large"),
    "a payload of 4 GB": (b"\x91\x91\x91\xc6" + LONG, 400, "malformed_msgpack"),
    "a text of 4 GB": (b"\x91\x91\x96\xc4\x01a\xa5bytes\x00\xc0\xc0\xdb" + LONG, 400, "malformed_msgpack"),
    "4 billion headers": (b"\x91\x91\x97\xc4\x01a\xa5bytes\x00\xc0\xc0\xc0\xdf" + LONG, 422, "invalid_value"),
    "nested deeply": (b"\x91" * 60_000 + b"\xc0", 400, "wrong_type"),
    "nested deeply behind the last field": (
        b"\x91\x91\x99\xc4\x01a\xa5bytes\x00\xc0\xc0\xc0\xc0\xc0" + b"\x91" * 60_000 + b"\xc0",
        422,
        "invalid_value",
    ),
    "a repeated header": (
        b"\x91\x91\x97\xc4\x01a\xa5bytes\x00\xc0\xc0\xc0\x82\xa1a\xa1b\xa1a\xa1c",
        400,
        "repeated_field",
    ),
    "text that is not UTF-8": (b"\x91\x91\x96\xc4\x01a\xa5bytes\x00\xc0\xc0\xa1\xff", 400, "malformed_msgpack"),
    "no messages": (pack([[]]), 422, "invalid_value"),
    "too many messages": (pack([[[b""]] * 10_001]), 413, "batch_too_large"),
    "a third field": (pack([[[b"a"]], None, 1]), 422, "invalid_value"),
    "an empty message": (pack([[[]]]), 422, "invalid_value"),
    "a payload of text": (pack([[["a"]]]), 400, "wrong_type"),
    "an unknown content": (pack([[[b"a", "xml"]]]), 422, "invalid_value"),
    "a priority out of range": (pack([[[b"a", "bytes", 2**31]]]), 422, "invalid_value"),
    "a priority of another type": (pack([[[b"a", "bytes", 1.0]]]), 400, "wrong_type"),
    "a negative delay": (pack([[[b"a", "bytes", 0, -1]]]), 422, "invalid_value"),
    "no time to live": (pack([[[b"a", "bytes", 0, None, 0]]]), 422, "invalid_value"),
    "an empty key": (pack([[[b"a", "bytes", 0, None, None, ""]]]), 422, "invalid_value"),
    "a header that is no text": (pack([[[b"a", "bytes", 0, None, None, None, {"a": 1}]]]), 400, "wrong_type"),
    "no JSON": (pack([[[b"1", "json"], [b"", "json"]]]), 400, "malformed_json"),
    "JSON with a comma": (pack([[[b"1,2", "json"], [b'"a', "json"], [b'b"', "json"]]]), 400, "malformed_json"),
    "JSON with a repeated name": (pack([[[b'{"a":1,"a":2}', "json"]]]), 400, "repeated_field"),
    "JSON nested deeply": (pack([[[b"[" * 62 + b"]" * 62, "json"]]]), 400, "malformed_json"),
    "content text that is not UTF-8": (pack([[[b"\xff", "text"]]]), 422, "invalid_value"),
    "one bad message among good ones": (pack([[[b"a"]] * 50 + [[b"a", "bytes", "1"]]]), 400, "wrong_type"),
    "a large batch with bad JSON": (pack([[[b"x" * 50_000], [b"x" * 50_000], [b"{", "json"]]]), 400, "malformed_json"),
    "a payload that is too large": (pack([[[b"a"], [b"x" * (600 << 10)]]]), 413, "payload_too_large"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_bad_batch_gets_a_typed_error_and_adds_nothing(client: Client, queue: str, what: str) -> None:
    body, status, code = MALFORMED[what]
    answer = push(client, queue, body)
    assert (answer.status, answer.json["code"]) == (status, code), answer
    assert answer.headers["content-type"] == "application/json"
    assert depth(client, queue) == 0


def test_a_truncated_batch_adds_nothing_wherever_it_ends(client: Client, queue: str) -> None:
    for end in range(len(GOOD)):
        answer = push(client, queue, GOOD[:end])
        assert (answer.status, answer.json["code"]) == (400, "malformed_msgpack"), end
    assert depth(client, queue) == 0


def test_an_error_names_the_field_as_in_json(client: Client, queue: str) -> None:
    answer = push(client, queue, [[[b"a"], [b"a", "bytes", 2**40]]])
    assert answer.json["field"] == "messages[1].priority"
    answer = client.post(f"{queue}/ack", pack([[[0, "t"]]]), content_type=BINARY)
    assert (answer.status, answer.json["field"]) == (422, "items[0].id")


def test_json_payloads_may_be_nested_as_deeply_as_in_a_json_batch(client: Client, queue: str) -> None:
    deepest = b"[" * 61 + b"]" * 61
    assert push(client, queue, [[[deepest, "json"], [b" { } ", "json"]]]).status == 201
    assert client.post(f"{queue}/messages", b'{"messages":[{"payload":%s}]}' % deepest).status == 201
    assert client.post(f"{queue}/messages", b'{"messages":[{"payload":[%s]}]}' % deepest).status == 400


def test_bad_acks_settle_nothing(client: Client, queue: str) -> None:
    push(client, queue, [[[b"a"]]])
    [[message], _] = poll(client, queue)
    good = [message[0], message[9]]
    for path in ("ack", "poll?wait_ms=0"):
        for items in ([good, [0, "t"]], [good, [1, 2]], [good, ["1", "t"]], [good, [1, "t", None]], [good, []]):
            answer = client.post(f"{queue}/{path}", pack([items]), content_type=BINARY)
            assert answer.status in (400, 422), answer
        assert client.post(f"{queue}/{path}", b"\x91\xdd" + LONG, content_type=BINARY).status == 413
    assert client.post(f"{queue}/ack", pack([[]]), content_type=BINARY).status == 422
    results = client.post(f"{queue}/ack", pack([[good, [999, "t"]]]), content_type=BINARY).json["results"]
    assert [each["result"] for each in results] == ["ok", "unknown"]


def test_other_endpoints_and_content_types_are_refused(client: Client, queue: str) -> None:
    for path in ("nack", "release", "extend", "transact"):
        assert client.post(f"{queue}/{path}", pack([[]]), content_type=BINARY).status == 415
    assert client.post(f"{queue}/messages", pack([[[b"a"]]]), content_type="application/msgpack").status == 415


def test_without_accept_the_response_is_json(client: Client, queue: str) -> None:
    answer = client.post(f"{queue}/messages", pack([[[b"a"]]]), content_type=BINARY)
    assert (answer.status, answer.json["duplicates"]) == (201, [])
    single = client.post(f"{queue}/messages", {"payload": 1}, accept=BINARY)
    assert single.json["duplicate"] is False


def test_the_layout_in_the_documentation_is_what_its_example_sends() -> None:
    text = HOWTO.read_text("utf-8")
    [layout] = [block for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if block.startswith("92 ")]
    columns = [line[:41] if len(line) < 80 else line[:49] for line in layout.splitlines()]
    documented = bytes.fromhex("".join(re.sub(r"[^0-9a-f]", "", each) for each in columns))
    messages = [
        [b'{"image": 7}', "json"],
        [b"\xff\xd8\xff", "bytes", 5, None, 60_000, "image-8", {"camera": "b"}],
    ]
    assert documented == pack([messages, "upload-1"])
    for number, field in enumerate(BinaryMessage.__struct_fields__):
        assert f"| {number} | {field}" in text


# The SDK


async def use(client: Any, name: str) -> None:
    """Push, lease and ack batches that use every field of a message."""
    queue = client.queue(name)
    for _ in range(3):
        payloads = [{"n": 1}, b"\x00\xff", "text", [1, None]]
        receipts = await queue.push_many(payloads)
        assert [receipt.duplicate for receipt in receipts] == [False] * 4
        leased = list(await queue.lease(10))
        assert [message.payload for message in leased] == payloads
        assert [message.id for message in leased] == [receipt.id for receipt in receipts]
        assert {message.queue for message in leased} == {name}
        assert [(await client.queue(name).get(each.id)).uuid for each in leased] == [each.uuid for each in leased]
        assert await queue.ack_many(leased) == []
        assert len(await queue.ack_many(leased[:1])) == 0, "a repeated ack gets the first result"
    receipt = await queue.push("keyed", key="k", priority=3, headers={"a": "b"}, ttl=60)
    assert (await queue.push("keyed", key="k")).duplicate
    [message] = list(await queue.lease(1))
    assert (message.id, message.key, message.priority, message.headers) == (receipt.id, "k", 3, {"a": "b"})
    await message.ack()
    assert (await queue.stats()).totals.acked == 13


class ContentTypeRecorder:
    """Records the content types of the requests that reach the handlers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.types: list[tuple[str, str]] = []
        body = Request.body

        async def note(request: Request) -> bytes:
            self.types.append((request.raw_path.decode().rpartition("/")[2], request.content_type().decode()))
            return await body(request)

        monkeypatch.setattr(Request, "body", note)

    def of(self, path: str) -> list[str]:
        return [kind for seen, kind in self.types if seen == path]


def test_the_sdk_speaks_binary_after_the_first_response(
    sdk: Sdk, server: Running, between: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = ContentTypeRecorder(monkeypatch)

    async def main() -> None:
        async with sdk.connect(between.url) as client:
            await client.create_queue(name)
            await use(client, name)

    asyncio.run(main())
    assert seen.of("messages") == ["application/json", *[BINARY] * 4]
    assert set(seen.of("ack")) == {BINARY}
    assert between.count("/messages") - between.count("GET") <= 5, "there is one round trip for each batch"


def forget_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server respond like an older one without binary batches."""
    monkeypatch.setattr(Request, "is_binary", False)
    monkeypatch.setattr(Request, "wants_binary", False)


def test_the_sdk_speaks_json_with_an_older_server(
    sdk: Sdk, server: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_binary(monkeypatch)
    seen = ContentTypeRecorder(monkeypatch)

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{server.port}") as client:
            await client.create_queue(name)
            await use(client, name)

    asyncio.run(main())
    assert set(seen.of("messages")) == set(seen.of("ack")) == {"application/json"}


def test_a_downgraded_server_neither_loses_nor_duplicates_messages(
    sdk: Sdk, between: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([1, 2])
            await queue.push_many([3, 4])
            leased = list(await queue.lease(4))
            between.lose_answer("/messages")
            await queue.push_many([5, 6])
            with monkeypatch.context() as older:
                forget_binary(older)
                sent = between.count("POST")
                await queue.push_many(["x" * 100_000] * 30)
                assert between.count("POST") - sent == 2, "refused in binary, repeated in JSON"
                await queue.push_many([7])
                assert await queue.ack_many(leased) == []
                assert between.count("POST") - sent == 4
            await queue.push_many([8])
            assert [message.payload for message in await queue.lease(2)] == [5, 6]
            totals = (await queue.stats()).totals
            assert (totals.pushed, totals.acked) == (38, 4)

    asyncio.run(main())


def test_an_ack_repeated_in_json_keeps_its_first_result(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([1, 2])
            leased = list(await queue.lease(2))
            between.lose_answer("/ack")
            between.answer("/ack", "415 Unsupported Media Type")
            assert await queue.ack_many(leased) == []
            assert between.count("/ack") == 3
            assert (await queue.stats()).totals.acked == 2

    asyncio.run(main())


def test_unknown_content_is_returned_as_bytes() -> None:
    row = [1, 2, "q", b"\x01", "avro", 0, 1, 5, 6, "t", None, None, "a field of a newer server"]
    response = batches.HttpResponse(200, {b"content-type": BINARY.encode()}, pack([[row], None, "another"]))
    [message] = batches.polled("q").decode(response)
    assert (message.payload, message.content, message.token) == (b"\x01", "bytes", "t")
