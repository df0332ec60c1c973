"""schemathesis: requests made from /openapi.json, and answers held against it.

SCHEMATHESIS_EXAMPLES=200 makes it a run of minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Fresh
from tests.integration.serving import clean_environment

HOOKS = "tests.robustness.schemathesis_hooks"
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES")
RUN = "from schemathesis.cli import schemathesis; schemathesis()"


@pytest.mark.timeout(3_600 if EXAMPLES else 200)
@pytest.mark.parametrize("token", [None, "a-token"])
def test_every_answer_is_as_described(serve: Fresh, token: str | None, tmp_path: Path) -> None:
    server = serve(auth_token=token, wait_ms_max=50, wait_ms_default=50, payload_bytes=100_000)
    phases = "coverage,fuzzing,stateful" if EXAMPLES else "coverage" if token is None else "fuzzing"
    flags = ["--max-examples", EXAMPLES or "3", "--phases", phases, "--request-timeout", "30", "--no-color"]
    # A stream of events has no end, and 1.0 is an integer to JSON Schema but not to us.
    flags += ["--exclude-path-regex", "/events$", "--exclude-checks", "positive_data_acceptance"]
    flags += ["--seed", "1"] if EXAMPLES else ["--generation-deterministic"]
    if token is not None:
        flags += ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, "run", f"http://127.0.0.1:{server.port}/openapi.json", *flags],
        env=clean_environment() | {"SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert found, done.stdout
    assert int(found[1]) > 100
