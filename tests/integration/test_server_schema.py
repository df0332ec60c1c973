"""Schemathesis makes requests from /openapi.json and checks the responses against it.

SCHEMATHESIS_EXAMPLES=200 turns this into a run of several minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.conftest import Fresh
from tests.robustness.fuzz_http import fuzz

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES")


@pytest.mark.timeout(3_600 if EXAMPLES else 200)
@pytest.mark.parametrize("token", [None, "a-token"])
def test_every_response_matches_the_openapi_document(serve: Fresh, token: str | None, tmp_path: Path) -> None:
    server = serve(auth_token=token, wait_ms_max=50, wait_ms_default=50, payload_bytes=100_000)
    phases = "coverage,fuzzing,stateful" if EXAMPLES else "coverage" if token is None else "fuzzing"
    flags = ["--max-examples", EXAMPLES or "3", "--phases", phases]
    flags += ["--seed", "1"] if EXAMPLES else ["--generation-deterministic"]
    if token is not None:
        flags += ["--header", f"Authorization: Bearer {token}"]
    requests, output = fuzz(server.port, tmp_path, *flags)
    print(output)
    assert requests > 100
