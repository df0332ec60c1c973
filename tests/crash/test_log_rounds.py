"""Short forms of the crash rounds of the log; the scripts beside this file are the long forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import log_crowd, log_kill_rounds, log_power_rounds


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    total = log_kill_rounds.run(12, 4, tmp_path, longest_s=0.3)
    assert total.violations == []
    assert total.counts["acknowledged"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_when_the_power_is_cut(tmp_path: Path, seed: int) -> None:
    acknowledged, _, violations = log_power_rounds.run(25, seed, tmp_path)
    assert violations == []
    assert acknowledged > 0


def test_each_record_reaches_each_consumer_once_and_in_order(tmp_path: Path) -> None:
    total, violations = log_crowd.run(tmp_path / "streams", lambda count: count < 30)
    assert (total, violations) == (20 * 30, [])
