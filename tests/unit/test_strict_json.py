"""Checking JSON costs a constant amount of work per byte, however large or hostile the body is."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from penstock import server
from penstock.errors import PenstockError
from penstock.server.api.queues.handlers import push_body
from penstock.server.api.streams.bodies import _append_body
from penstock.wire import strict_json
from tests.integration.javascript import missing
from tests.proof.json_bodies import ADVERSARIAL, KIB, MIB, CountedPattern, adversarial, fuzz_json, verdict

CPU_SECONDS = 10
CHECK = """
import sys
from penstock.errors import PenstockError
from penstock.wire.strict_json import check_json
try:
    check_json(sys.stdin.buffer.read())
except PenstockError as error:
    print(error.code)
"""
VIEW = """
globalThis.Node = class {}
globalThis.document = {
  createElement: () => ({ append() {}, setAttribute() {}, removeAttribute() {}, addEventListener() {} }),
}
const { jsonView } = await import(process.argv[1])
jsonView({ a: '"'.repeat(250_000) })
jsonView({ a: '\\\\'.repeat(250_000) })
console.log('shown')
"""


def limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def characters_per_byte(body: bytes, monkeypatch: pytest.MonkeyPatch) -> float:
    counted = {name: CountedPattern(getattr(strict_json, name)) for name in ("TOKEN", "FAR", "NUMBER")}
    with monkeypatch.context() as patch:
        for name, pattern in counted.items():
            patch.setattr(strict_json, name, pattern)
        verdict(body)
    return sum(pattern.scanned for pattern in counted.values()) / len(body)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_large_body_costs_as_many_scanned_characters_per_byte_as_a_small_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_json, "QUICK_BYTES", 0)
    small = characters_per_byte(adversarial(name, KIB), monkeypatch)
    large = characters_per_byte(adversarial(name, 16 * MIB), monkeypatch)
    assert large <= max(1.0, 2 * small)
    assert large <= 3


@pytest.mark.parametrize("name", ["TOKEN", "FAR", "NUMBER"])
def test_no_pattern_can_backtrack(name: str) -> None:
    def repeats(parsed: Any) -> Any:
        for operation, argument in parsed:
            if "REPEAT" in str(operation):
                yield str(operation), argument[0], argument[1]
            parts = argument if isinstance(argument, tuple | list) else (argument,)
            for part in parts:
                if isinstance(part, _parser.SubPattern):
                    yield from repeats(part)
                elif isinstance(part, list):
                    for each in part:
                        if isinstance(each, _parser.SubPattern):
                            yield from repeats(each)

    pattern: re.Pattern[bytes] = getattr(strict_json, name)
    found = list(repeats(_parser.parse(pattern.pattern, pattern.flags)))
    assert found
    for operation, least, most in found:
        assert operation == "POSSESSIVE_REPEAT" or least == most <= 200, (operation, least, most)


@pytest.mark.parametrize("size", [64 * KIB, 16 * MIB])
def test_a_body_of_escaped_quotes_is_refused_before_it_costs_seconds(size: int) -> None:
    body = adversarial("escaped quotes, unterminated", size)
    child = subprocess.run([sys.executable, "-c", CHECK], input=body, capture_output=True, preexec_fn=limit_cpu)
    assert child.returncode == 0, child
    assert child.stdout.split() == [b"malformed_json"]


def test_a_message_of_quotes_is_rendered_before_it_costs_seconds() -> None:
    view = Path(server.__file__).with_name("dashboard") / "static" / "json_view.js"
    command = [shutil.which("node") or missing("Node"), "--input-type=module", "-e", VIEW, str(view)]
    child = subprocess.run(command, capture_output=True, preexec_fn=limit_cpu)
    assert child.stdout == b"shown\n", child


def test_random_json_is_accepted_exactly_as_by_another_parser() -> None:
    assert fuzz_json(seed=18, rounds=1_000) == 1_000


def refusal(body: bytes, decoder: Any, value_bytes_max: int | None = None) -> str:
    with pytest.raises(PenstockError) as refused:
        strict_json.decode(body, decoder, value_bytes_max=value_bytes_max)
    return refused.value.code


def test_an_oversized_payload_is_refused_before_it_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = CountedPattern(strict_json.TOKEN)
    monkeypatch.setattr(strict_json, "TOKEN", counted)
    payload = b'{"a":1.0,"a":2}' * 100_000
    assert refusal(b'{"payload":[%s1]}' % (payload.replace(b"}", b"},")), push_body, MIB) == "payload_too_large"
    large = b'{"messages":[{"payload":1},{"payload":"%s"}]}' % (b"x" * 2 * MIB)
    assert refusal(large, push_body, MIB) == "payload_too_large"
    assert counted.scanned == 0


@pytest.mark.parametrize(("decoder", "name"), [(push_body, b"messages"), (_append_body, b"records")])
def test_a_list_with_too_many_elements_is_refused_before_they_are_decoded(decoder: Any, name: bytes) -> None:
    assert refusal(b'{"%s":[%s1]}' % (name, b"1," * 4_000_000), decoder) == "batch_too_large"
    assert refusal(b'{"%s":[%s1]}' % (name, b"1," * 40_000), decoder) == "batch_too_large"


def test_repeated_names_are_found_anywhere_in_a_large_body() -> None:
    filler = b'"%s"' % (b"x" * 100_000)
    for body in (
        b'{"payload":%s,"priority":1,"payload":1}' % filler,
        b'{"payload":%s,"priority":1,"\\u0070riority":2}' % filler,
        b'{"messages":[{"payload":%s},{"payload":1,"payload":1}]}' % filler,
        b'{"messages":[{"payload":%s},{"payload":1,"headers":{"a":"b","a":"b"}}]}' % filler,
        b'{"payload":{"a":%s,"b":{"c":1,"c":1}}}' % filler,
    ):
        assert refusal(body, push_body) == "repeated_field"
    strict_json.decode(b' {"priority" : 1 , "payload" : %s } ' % filler, push_body)
    strict_json.decode(b'{"\\u0070riority":2,"payload":%s}' % filler, push_body)


class SizeRecordingDecoder:
    """A decoder that remembers the largest input it received."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.most = 0

    def decode(self, body: Any) -> Any:
        self.most = max(self.most, len(bytes(body)))
        return self._decoder.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"payload":{%s}}' % b",".join(b'"%07x":1' % number for number in range(90_000)),
        b'{"payload":[%s1]}' % (b"[[[[1.0]]]]," * 80_000),
        b'{"messages":[%s]}' % b",".join([b'{"payload":{"a":[1,2,{"b":"c"}]}}'] * 9_000),
        b'{"messages":[%s]}' % b",".join([b'{"payload":[%s1]}' % (b"1.50," * 20_000)] * 40),
    ],
    ids=["unique names", "nested brackets", "many messages", "large messages"],
)
def test_a_large_body_is_decoded_in_bounded_slices(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [SizeRecordingDecoder(strict_json._any), SizeRecordingDecoder(strict_json._shallow)]
    monkeypatch.setattr(strict_json, "_any", measured[0])
    monkeypatch.setattr(strict_json, "_shallow", measured[1])
    strict_json.decode(body, push_body)
    assert max(each.most for each in measured) <= 64 * KIB
