"""Tests JSON parsing with bodies that are expensive for their size, and compares random bodies with a second parser."""

from __future__ import annotations

import json
import random
from typing import Any

from penstock.errors import PenstockError
from penstock.server.api.queues.handlers import push_body
from penstock.wire import strict_json

DEPTH_MAX = strict_json.DEPTH_MAX
KIB, MIB = 1 << 10, 1 << 20
NAMES = ["a", "b", "\\u0061", "", "é", "\\n", '\\"', "a b", "{", "payload"]
STRINGS = [*NAMES, "]", "\\ud83d\\ude00", "\\\\", "1e999", "x" * 70, '\\"' * 40]
NUMBERS = ["0", "-1", "1.50", "1e5", "1E+2", "1e308", "1e309", "-1e999", "9" * 30, "9" * 250 + "e99", "0." + "1" * 300]
SCALARS = ["true", "false", "null", *NUMBERS]
SPACES = ["", "", "", " ", "\n\t", "\r\n  "]
PIECES = [
    b'"',
    b"\\",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"1",
    b"e",
    b"\xff",
    b"\xc3",
    b"\0",
    b" ",
    b"NaN",
    b"\\ud800",
]


# Each is the worst case of some way to check JSON: a prefix, a repeated part and a suffix.
ADVERSARIAL: dict[str, tuple[bytes, bytes, bytes]] = {
    "escaped quotes, unterminated": (b'{"payload":' + b"[" * 70 + b'"', b'\\"', b""),
    "escaped quotes": (b'["', b'\\"', b'"]'),
    "quotes, unterminated": (b"[", b'"', b""),
    "backslashes": (b'["', b"\\\\", b'"]'),
    "open brackets": (b"", b"[", b""),
    "brackets": (b"[", b"[],", b"1]"),
    "objects": (b"[", b'{"a":1},', b"1]"),
    "short strings": (b"[", b'"a short string",', b"1]"),
    "names without values": (b"{", b'"a" ', b"}"),
    "one long name": (b'{"', b"a", b'":1}'),
    "digits": (b"[", b"1", b"]"),
    "long numbers": (b"[", b"1" * 199 + b",", b"1]"),
    "exponents": (b"[", b"1e100,", b"1]"),
    "small numbers": (b"[", b"1,", b"1]"),
    "space": (b"[", b" ", b"1]"),
    "space after strings": (b"[", b'""' + b" " * 60 + b",", b"1]"),
    "two-byte characters": (b'["', "é".encode(), b'"]'),
    "bytes that are not UTF-8": (b'["', b"\xff", b'"]'),
}


def adversarial(name: str, size: int) -> bytes:
    before, text, after = ADVERSARIAL[name]
    return before + text * ((size - len(before) - len(after)) // len(text)) + after


def verdict(body: bytes) -> str:
    """Return the server's verdict on a body: "ok" or an error code."""
    try:
        strict_json.check_json(body)
    except PenstockError as error:
        return error.code
    return "ok"


def _verdict_on_push(body: bytes) -> str:
    try:
        strict_json.decode(body, push_body)
    except PenstockError as error:
        return error.code
    return "ok"


def is_sound(body: bytes) -> bool:
    """Return True if the standard library's parser accepts the body and every value is within our limits."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    def unique(pairs: list[tuple[str, Any]]) -> list[Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a name is repeated")
        return [name for name, _ in pairs] + [value for _, value in pairs]

    try:
        _look_at(json.loads(body.decode(), parse_constant=refuse, object_pairs_hook=unique), 0)
    except (ValueError, RecursionError):
        return False
    return True


def _look_at(value: Any, depth: int) -> None:
    if isinstance(value, list):
        if depth == DEPTH_MAX:
            raise RecursionError
        for each in value:
            _look_at(each, depth + 1)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise ValueError("out of range")


def random_body(chance: random.Random) -> bytes:
    body = _random_value(chance, chance.choice((2, 4, 7))).encode()
    if chance.random() < 0.2:
        deep = chance.choice((DEPTH_MAX - 8, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 2_000))
        body = b"[" * deep + body + b"]" * deep
    if chance.random() < 0.3:
        at = chance.randrange(len(body) + 1)
        body = body[:at] + chance.choice(PIECES) + body[at + chance.randrange(3) :]
    return body


def _random_value(chance: random.Random, depth: int) -> str:
    def space() -> str:
        return chance.choice(SPACES)

    kind = chance.randrange(6)
    if depth == 0 or kind < 2:
        return chance.choice(SCALARS) if kind % 2 else f'"{chance.choice(STRINGS)}"'
    inner = [_random_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind < 4:
        return f"[{space()}" + f"{space()},{space()}".join(inner) + f"{space()}]"
    members = [f'"{chance.choice(NAMES)}"{space()}:{space()}{each}' for each in inner]
    return f"{{{space()}" + f"{space()},{space()}".join(members) + f"{space()}}}"


def fuzz_json(seed: int, rounds: int) -> int:
    """Compare the verdict on random bodies with that of another parser, alone and inside a large batch."""
    chance = random.Random(seed)
    filler = b'{"payload":"%s"}' % (b"x" * strict_json.QUICK_BYTES)
    for number in range(rounds):
        body = random_body(chance)
        assert (verdict(body) == "ok") == is_sound(body), (seed, number, body)
        large = b'{"messages":[%s,{"payload":%s}]}' % (filler, body)
        assert (_verdict_on_push(large) == "ok") == is_sound(large), (seed, number, body)
    return rounds


class CountedPattern:
    """A compiled pattern that counts the characters it scans, in matches and in failed attempts."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern
        self.scanned = 0

    def finditer(self, text: bytes) -> Any:
        end = 0
        try:
            for match in self._pattern.finditer(text):
                start, following = match.span()
                assert start == end, "a token does not begin where the last one ended"
                end = following
                yield match
            assert end == len(text), "the tokens do not cover the text"
        finally:
            self.scanned += end

    def search(self, text: bytes) -> Any:
        self.scanned += len(text)
        return self._pattern.search(text)

    def findall(self, text: bytes) -> Any:
        self.scanned += len(text)
        return self._pattern.findall(text)
