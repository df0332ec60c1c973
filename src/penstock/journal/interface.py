"""The store interface of the journal's drainer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.group_commit.interface import CommandSink


class JournalRow(NamedTuple):
    """The events of one commit: encoded records back to back, the first at this offset."""

    first_offset: int
    records: int
    bytes: bytes


class JournalledStore(CommandSink, Protocol):
    """A store whose journal is drained into a log."""

    @property
    def journal_waits(self) -> bool:
        """True if `CatchUpJournal` may have deferred events to record."""

    def journal_bounds(self) -> tuple[int, int]:
        """Return the first retained offset and the next one."""

    def journal_from(self, offset: int, max_bytes: int) -> list[JournalRow]:
        """Return committed rows from this offset on, at least one if there is any."""

    def sync(self) -> None:
        """Fsync all commits, including those that did not wait for the disk."""
