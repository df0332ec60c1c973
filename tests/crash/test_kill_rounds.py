"""Acknowledged operations survive SIGKILL exactly once. `kill_rounds.py --rounds 200` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

ROUNDS = 8


def test_nothing_acknowledged_is_lost_or_doubled_when_processes_are_killed() -> None:
    # It runs in its own process, because forking is safe only in a process with one thread.
    seed = str(random.SystemRandom().getrandbits(32))
    script = Path(__file__).with_name("kill_rounds.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", str(ROUNDS), "--seed", seed], capture_output=True, text=True, timeout=200
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
