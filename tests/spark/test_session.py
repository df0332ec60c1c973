"""What a session of ours does that a plain one does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark


def test_a_python_worker_that_dies_does_not_end_a_local_run(spark: Any, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def once_dying(batches: Iterator[Any]) -> Iterator[Any]:
        if not died.exists():
            died.touch()
            os._exit(1)
        yield from batches

    assert spark.range(100).mapInArrow(once_dying, "id long").count() == 100
    assert died.exists()
