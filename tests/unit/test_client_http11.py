"""The SDK's HTTP/1.1 parser returns complete responses, however the bytes are split."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.client.http11 import HEAD_BYTES_MAX, BadResponse, HttpResponse, ResponseParser, encode_request

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, 10 bytes\r\n0\r\n\r\n"
TRAILED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"


def read(reader: ResponseParser, data: bytes, step: int) -> HttpResponse | None:
    answer = None
    for start in range(0, len(data), step):
        assert answer is None
        answer = reader.feed(data[start : start + step])
    return answer


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_response_can_arrive_in_pieces(step: int) -> None:
    reader = ResponseParser()
    for _ in range(2):
        answer = read(reader, PLAIN, step)
        assert answer == HttpResponse(200, {b"content-length": b"5", b"x-a": b"b"}, b"hello")
        assert reader.keep_alive
        assert not reader.begun
        for data in (CHUNKED, TRAILED):
            answer = read(reader, data, step)
            assert answer is not None
            assert answer.status == 201
            assert answer.body in (b"hello, 10 bytes", b"hello")


@pytest.mark.parametrize("step", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, 10 bytes\r\n0\r\n\r\n",
        b"Content-Length: 15\r\n\r\nhello, 10 bytes",
    ],
)
def test_a_body_can_be_streamed_while_it_arrives(step: int, framing: bytes) -> None:
    reader = ResponseParser(in_parts=True)
    data = b"HTTP/1.1 201 Created\r\n" + framing
    parts = []
    for start in range(0, len(data), step):
        answer = reader.feed(data[start : start + step])
        part = answer or reader.take_part()
        if part is not None:
            assert part.status == 201
            parts.append(part.body)
    assert len(parts) > 1
    assert b"".join(parts) == b"hello, 10 bytes"
    assert not reader.begun


def test_a_body_without_a_length_can_be_streamed_while_it_arrives() -> None:
    reader = ResponseParser(in_parts=True)
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nhel") is None
    first = reader.take_part()
    assert reader.feed(b"lo") is None
    last = reader.end()
    assert first is not None
    assert last is not None
    assert (first.body, last.body) == (b"hel", b"lo")


def test_a_streamed_body_uses_the_memory_of_one_part() -> None:
    part = b"x" * (1 << 20)
    reader = ResponseParser(in_parts=True)
    assert reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 40)) is None
    tracemalloc.start()
    try:
        for _ in range(64):
            assert reader.feed(part) is None
            taken = reader.take_part()
            assert taken is not None
            assert len(taken.body) == len(part)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(part)
    finally:
        tracemalloc.stop()


def test_a_truncated_body_with_a_length_is_not_complete() -> None:
    reader = ResponseParser(in_parts=True)
    reader.feed(PLAIN[:-1])
    assert reader.take_part() is not None
    assert reader.end() is None


def test_an_interim_response_is_skipped() -> None:
    answer = ResponseParser().feed(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN)
    assert answer is not None
    assert answer.body == b"hello"


def test_responses_that_cannot_have_a_body_have_none() -> None:
    answer = ResponseParser().feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert answer is not None
    assert answer.body == b""


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseParser()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nhel") is None
    assert reader.feed(b"lo") is None
    answer = reader.end()
    assert answer is not None
    assert answer.body == b"hello"
    assert not reader.keep_alive


def test_a_truncated_response_is_not_returned() -> None:
    reader = ResponseParser()
    assert reader.feed(PLAIN[:-1]) is None
    assert reader.begun
    assert reader.end() is None


@pytest.mark.parametrize(
    ("head", "stays"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive", True),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive", True),
    ],
)
def test_keep_alive_depends_on_the_connection_header(head: bytes, stays: bool) -> None:
    reader = ResponseParser()
    assert reader.feed(head + b"\r\ncontent-length: 0\r\n\r\n")
    assert reader.keep_alive is stays


def test_unexpected_bytes_after_a_response_end_keep_alive() -> None:
    reader = ResponseParser()
    assert reader.feed(PLAIN + b"HTTP/1.1 200 OK\r\n")
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
)
def test_a_response_that_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseParser().feed(data)


def test_a_request_is_encoded_with_its_headers() -> None:
    assert encode_request("GET", "/a", b"host: h\r\n", None) == b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n"
    assert encode_request("POST", "/a?b=1", b"host: h\r\n", b"{}") == (
        b"POST /a?b=1 HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
