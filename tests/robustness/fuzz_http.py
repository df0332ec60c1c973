"""Schemathesis makes requests from a server's /openapi.json and checks the responses against it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.integration.serving import clean_environment

HOOKS = "tests.robustness.schemathesis_hooks"
# Schemathesis expects fewer statuses, but the server refuses an oversized request before it parses it.
REFUSED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, 431]
ROOT = Path(__file__).resolve().parents[2]
RUN = "from schemathesis.cli import schemathesis; schemathesis()"


def fuzz(port: int, folder: Path, *flags: str) -> tuple[int, str]:
    """Return the number of requests, all of which got a documented response, and the output."""
    # A stream of events has no end, and JSON Schema takes 1.0 for an integer, which the server does not.
    always = ["--exclude-path-regex", "/events$", "--exclude-checks", "positive_data_acceptance"]
    # The health check fails because few generated values fit a pattern, which says nothing about the server.
    always += ["--suppress-health-check", "filter_too_much", "--request-timeout", "30", "--no-color"]
    (folder / "schemathesis.toml").write_text(f"[checks.negative_data_rejection]\nexpected-statuses = {REFUSED}\n")
    done = subprocess.run(
        [sys.executable, "-c", RUN, "run", f"http://127.0.0.1:{port}/openapi.json", *flags, *always],
        env=clean_environment() | {"SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert found, done.stdout
    return int(found[1]), done.stdout
