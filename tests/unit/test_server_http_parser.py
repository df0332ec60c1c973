"""The server's HTTP parser agrees with h11 about where each request ends."""

from __future__ import annotations

import re
from re import _parser  # type: ignore[attr-defined]

import pytest

from penstock.server.http import request_parser
from penstock.server.http.request_parser import HEAD_BYTES_MAX, RequestParser
from penstock.wire.http_errors import HttpError
from tests.proof.http_bytes import Seen, fuzz_parser, read_by_h11, read_here, why_stricter


def test_random_bytes_are_parsed_as_by_h11() -> None:
    assert fuzz_parser(seed=18, rounds=4_000) > 2_000


def test_a_zero_byte_in_a_chunk_extension_is_refused_unlike_in_h11() -> None:
    data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a\0=b\r\nhello\r\n0\r\n\r\n"
    assert read_here([data]) == []
    assert read_by_h11(data) == [Seen("POST", b"/", b"h", b"hello")]
    assert why_stricter(data) == ["a zero byte in a chunk's extension"]


@pytest.mark.parametrize("trailer", [b"Transfer-Encoding: chunked", b"content-length: 3", b"A: b\r\nHost: other"])
def test_a_trailer_cannot_change_the_target_or_length_of_a_request(trailer: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    assert read_here([head + b"A: b\r\n\r\n"]) == [Seen("POST", b"/", b"h", b"")]
    assert read_here([head + trailer + b"\r\n\r\n"]) == []
    assert "a trailer that says where a request goes or ends" in why_stricter(head + trailer + b"\r\n\r\n")


def test_the_same_requests_are_parsed_however_they_are_split() -> None:
    data = b"\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: x\r\n\r\n"
    data += b"PUT http://other/c#d HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc\r\nGET / HTTP/1.0\r\n\r\nignored"
    wanted = [Seen("POST", b"/a?b", b"h", b"hello"), Seen("PUT", b"/c", b"other", b"abc"), Seen("GET", b"/", b"", b"")]
    for size in range(1, len(data) + 1):
        assert read_here([data[at : at + size] for at in range(0, len(data), size)]) == wanted


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"\x16\x03\x01", 400),
        (b"GET /\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n", 400),
    ],
    ids=["unterminated head", "many headers", "TLS", "no version", "lines without CR"],
)
def test_a_malformed_request_is_refused_without_waiting_for_more(data: bytes, status: int) -> None:
    parser = RequestParser()
    parser.feed(data)
    with pytest.raises(HttpError) as refused:
        parser.next()
    assert refused.value.status == status


def test_no_pattern_can_backtrack() -> None:
    patterns = {name: each for name, each in vars(request_parser).items() if isinstance(each, re.Pattern)}
    assert len(patterns) > 5
    for name, pattern in patterns.items():
        assert "MAX_REPEAT" not in str(list(_parser.parse(pattern.pattern, pattern.flags))), name
