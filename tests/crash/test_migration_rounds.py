"""A migration that is killed loses and doubles nothing. `migration_rounds.py` is the long form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof import compatibility

EVERY = {"sqlite": 4, "postgresql": 15}


@pytest.mark.parametrize("kind", EVERY)
def test_a_store_whose_migration_is_killed_is_the_old_one_or_the_new_one(kind: str) -> None:
    # In a process of its own: forking is for a program with one thread.
    script = Path(__file__).with_name("migration_rounds.py")
    words = [sys.executable, str(script), "--store", kind, "--every", str(EVERY[kind])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", EVERY)
def test_a_process_of_an_older_version_gets_typed_errors_once_its_store_is_migrated(kind: str, tmp_path: Path) -> None:
    assert compatibility.migrate_under(kind, tmp_path)
