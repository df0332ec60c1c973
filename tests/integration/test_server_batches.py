"""An unusual or invalid push does not affect the other requests in its batch."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import serving_from
from tests.integration.serving import Client, Running

SECONDS = 0.7
ODD: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "NUL in a request key": ({"messages": [{"payload": 1}], "request_key": "a\0b"}, {}),
    "a header too long for a key": ({"messages": [{"payload": 1}]}, {"Idempotency_Key": secrets.token_hex(3_500)}),
}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize("what", ODD)
def test_a_bad_request_does_not_fail_other_clients(server: Running, client: Client, name: str, what: str) -> None:
    body, headers = ODD[what]
    guilty, innocent = client.queue(f"{name}-a"), client.queue(f"{name}-b")
    answers: dict[str, Counter[int]] = {guilty: Counter(), innocent: Counter()}
    end = time.monotonic() + SECONDS

    def push(queue: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        with server.client() as mine:
            while time.monotonic() < end:
                answers[queue][mine.ask("POST", f"{queue}/messages", body, **headers).status] += 1

    plain: tuple[str, dict[str, Any], dict[str, str]] = (innocent, {"payload": 1}, {})
    threads = [threading.Thread(target=push, args=args) for args in (plain, plain, plain, (guilty, body, headers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers[innocent]) == {201}
    assert set(answers[guilty]) == {422}
