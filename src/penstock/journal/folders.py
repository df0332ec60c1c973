"""The folders beside a database file: its journal and its streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.journal.drainer import journal_folder
from penstock.log.cut_records import cut_files
from penstock.log.streams import stream_folders, streams_beside


def logs_beside(database: Path) -> Iterator[Path]:
    """Return the folders of a file's journal and streams."""
    if journal_folder(database).is_dir():
        yield journal_folder(database)
    yield from stream_folders(streams_beside(database))


def cuts_beside(database: Path) -> list[Path]:
    """Return the files of records that were cut off a file's journal and streams."""
    return [path for folder in logs_beside(database) for path in cut_files(folder)]
