"""Damage reports of a log, from opening, `check` and `repair`."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class DamageKind(StrEnum):
    TORN_TAIL = "torn_tail"
    """Unacknowledged bytes after the last whole record."""
    CORRUPT = "corrupt"
    """Records that fail their checksum."""
    LOST = "lost"
    """Acknowledged records that are missing."""
    GIVEN_UP = "given_up"
    """Lost records that an earlier repair replaced by markers."""
    INDEX = "index"
    """An index that is missing, short, damaged or from another segment. It can be rebuilt."""
    SUMS = "sums"
    """Wrong block sums, which only slow down bulk reads."""
    HEAD = "head"
    """A damaged segment header. It can be rewritten."""
    MISPLACED = "misplaced"
    """A file that belongs to another stream or offset than its name says. It is not served."""
    CUT = "cut"
    """Whole records of unknown offset that were cut off a log; they are kept beside it."""
    MANIFEST = "manifest"
    IDENTITY = "identity"
    CONSUMERS = "consumers"


class Finding(Struct, frozen=True, kw_only=True):
    trouble: DamageKind
    text: str
    segment: str | None = None
    first: int | None = None
    """First affected offset; `last` is the last one."""
    last: int | None = None
    position: int | None = None
    """Byte position in the segment."""
    repaired: bool = False

    @property
    def loses_records(self) -> bool:
        """True if acknowledged records are affected."""
        return self.trouble in (DamageKind.CORRUPT, DamageKind.LOST, DamageKind.MISPLACED, DamageKind.CUT)


class Report(Struct, kw_only=True):
    """Result of a check or a repair."""

    stream: str
    segments: int = 0
    records: int = 0
    bytes: int = 0
    first: int = 0
    next: int = 0
    findings: list[Finding] = []

    @property
    def ok(self) -> bool:
        """True if there is nothing left to repair."""
        return all(finding.repaired or finding.trouble is DamageKind.GIVEN_UP for finding in self.findings)
