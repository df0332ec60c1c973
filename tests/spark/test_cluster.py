"""The same pipeline on a standalone cluster: a worker that is killed half-way changes nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock.errors import CannotOpen
from penstock.pipeline.lake import Lake, app_of
from penstock.pipeline.logs import FolderPlace
from penstock.pipeline.run import DERIVED
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.cluster import LOCALLY, Standalone
from tests.spark.support import Work, check_lake

PATIENCE_SECONDS = 600
pytestmark = [pytest.mark.spark, pytest.mark.timeout(3 * PATIENCE_SECONDS)]


def wait_until_all_is_in(lake: Path, journal: Path, pipeline: subprocess.Popen[bytes]) -> None:
    with closing(FolderPlace(str(journal)).open()) as log:
        app, end = app_of(log.uid), log.next_offset
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert pipeline.poll() is None
        with suppress(CannotOpen):  # It is not made yet.
            if all(Lake(lake)[table].position(app) == end for table in DERIVED):
                return
        time.sleep(0.2)
    raise AssertionError("the lake does not come to the journal's end")


def test_a_cluster_fills_the_same_tables_though_a_worker_is_killed_half_way(work: Work, tmp_path: Path) -> None:
    work.some(200)
    cluster = Standalone(tmp_path / "cluster")
    pipeline = subprocess.Popen(
        [PENSTOCK, "pipeline", "run", "--continuous", "--data", str(work.data), "--master", cluster.url],
        env=clean_environment(**LOCALLY),
        stdout=subprocess.DEVNULL,
    )
    try:
        lake = work.data / "lake"
        work.some(200, seed=1)
        wait_until_all_is_in(lake, work.drained(), pipeline)
        work.some(200, seed=2)
        work.drained()
        cluster.kill_a_worker()
        work.some(200, seed=3)
        wait_until_all_is_in(lake, work.drained(), pipeline)
        check_lake(work, Lake(lake))
    finally:
        pipeline.send_signal(signal.SIGINT)
        pipeline.wait(60)
        cluster.close()
