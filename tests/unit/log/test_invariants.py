"""A broken invariant stops a write before it damages stored data."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvariantBroken
from penstock.log.writer import AppendEncoded, Log
from tests.unit.log.support import fill, log_of, make, read_all


def test_records_whose_sizes_do_not_cover_their_bytes_are_not_written(tmp_path: Path) -> None:
    with Log(make(tmp_path / "s", 20)) as log:
        size = log_of(log.folder, 0).stat().st_size
        with pytest.raises(InvariantBroken):
            log.apply([AppendEncoded(data=b"x" * 40, sizes=[30])])
        assert (log.next_offset, log_of(log.folder, 0).stat().st_size) == (20, size)
        fill(log, 5)
        assert len(read_all(log)[0]) == 25


def test_a_segment_does_not_begin_before_the_last_one_ends(tmp_path: Path) -> None:
    with Log(make(tmp_path / "s", 20)) as log:
        with log.turn, pytest.raises(InvariantBroken):
            log.roll(19)
        fill(log, 5)
        assert len(read_all(log)[0]) == 25


def test_a_new_segment_does_not_overwrite_records(tmp_path: Path) -> None:
    with Log(make(tmp_path / "s", 20)) as log:
        path = log_of(log.folder, 20)
        path.write_bytes(b"records of another writer" * 10)
        with log.turn, pytest.raises(InvariantBroken):
            log.roll()
        assert path.read_bytes() == b"records of another writer" * 10
        assert len(read_all(log)[0]) == 20
