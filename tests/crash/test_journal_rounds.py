"""The journal of a killed server holds each committed change once. `journal_rounds.py` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

ROUNDS = 5


def test_each_committed_change_is_in_the_journal_once_though_the_server_is_killed() -> None:
    seed = str(random.SystemRandom().getrandbits(32))
    script = Path(__file__).with_name("journal_rounds.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", str(ROUNDS), "--seed", seed], capture_output=True, text=True, timeout=250
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
