"""The short form of the proof: every fault once, with clients of every API. `make proof` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof import damage, fuzzing
from tests.proof.load import Level
from tests.proof.load import judge as judge_load
from tests.proof.soak import Sample
from tests.proof.soak import judge as judge_soak
from tests.proof.world import WORLDS

ROOT = Path(__file__).resolve().parents[2]
# A fixed seed for the tests; `make proof` draws its own.
SEED = 5


@pytest.mark.timeout(280)
@pytest.mark.parametrize("store", list(WORLDS))
def test_nothing_is_lost_duplicated_or_reordered_when_every_fault_happens_once(store: str) -> None:
    # It runs in its own process because one of its threads may hang.
    seed = str(random.SystemRandom().getrandbits(32))
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof", "--short", "--store", store, "--seed", seed],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=260,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_log_with_changed_files_never_serves_a_wrong_byte(tmp_path: Path) -> None:
    assert fuzzing.fuzz_logs(tmp_path, SEED, 40) == 40


@pytest.mark.parametrize("how", list(damage.MAKERS))
def test_no_kind_of_damage_loses_intact_records_or_serves_wrong_ones(tmp_path: Path, how: str) -> None:
    outcome = damage.run(tmp_path, SEED, 1, (how,), one_in=5)
    assert outcome.violations == []
    assert outcome.intact > 500


def test_no_command_line_ends_in_a_traceback(tmp_path: Path) -> None:
    ran = fuzzing.fuzz_cli(tmp_path, SEED, 3)
    assert len(ran) > 40


def flat(**changes: list[float]) -> list[Sample]:
    samples = [Sample(float(at), 60.0, 40, 2.0, 9.0, 100.0) for at in range(8)]
    for name, values in changes.items():
        for sample, value in zip(samples, values, strict=True):
            setattr(sample, name, value)
    return samples


@pytest.mark.parametrize(
    ("samples", "violations"),
    [
        (flat(), 0),
        (flat(memory_mib=[40.0, 60, 60, 60, 61, 60, 62, 61]), 0),
        (flat(memory_mib=[40.0, 50, 60, 70, 80, 90, 100, 110]), 1),
        (flat(files=[40, 50, 60, 70, 80, 90, 100, 110]), 1),
        (flat(p50_ms=[2.0, 2, 2, 4, 8, 16, 32, 64]), 1),
    ],
)
def test_a_soak_that_is_not_flat_is_reported(samples: list[Sample], violations: int) -> None:
    assert len(judge_soak(samples)) == violations


def test_falling_goodput_and_missing_refusals_are_reported() -> None:
    def level(clients: int, answered: int, refused: int) -> Level:
        return Level(clients, 1.0, answered=answered, refused=refused)

    assert judge_load([level(8, 1_000, 0), level(1_000, 900, 50)]) == []
    assert len(judge_load([level(8, 1_000, 0), level(1_000, 400, 50)])) == 1
    assert len(judge_load([level(8, 1_000, 0), level(1_000, 900, 0)])) == 1
    assert len(judge_load([level(8, 1_000, 0), level(1_000, 900, 50), level(1_000, 100, 9_000)])) == 1
