"""What the journal's drainer needs of a store."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.group_commit.interface import CommandSink


class JournalRow(NamedTuple):
    """The events of one commit: this many records, back to back, the first at this offset."""

    first_offset: int
    records: int
    bytes: bytes


class JournalledStore(CommandSink, Protocol):
    """A store whose journal is drained into a log."""

    @property
    def journal_waits(self) -> bool:
        """Whether `CatchUpJournal` may have something to tell."""

    def journal_bounds(self) -> tuple[int, int]:
        """The first offset that is not forgotten, and the next to be given."""

    def journal_from(self, offset: int, max_bytes: int) -> list[JournalRow]:
        """What was committed from this offset on and not yet forgotten: at least one row if there is any."""

    def sync(self) -> None:
        """Wait until all that is committed is on disk, also what did not wait when it was."""
