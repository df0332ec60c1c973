"""Every table is exact though the pipeline and its server are killed. `pipeline_rounds.py` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
ROUNDS, MESSAGES = 2, 600


def test_every_table_is_exact_though_the_pipeline_and_its_server_are_killed() -> None:
    seed = str(random.SystemRandom().getrandbits(32))
    script = Path(__file__).with_name("pipeline_rounds.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", str(ROUNDS), "--messages", str(MESSAGES), "--seed", seed],
        capture_output=True,
        text=True,
        timeout=280,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
