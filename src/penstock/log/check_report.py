"""What can be wrong with a log, as data: what opening, `check` and `repair` have to say."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class DamageKind(StrEnum):
    TORN_TAIL = "torn_tail"
    """Bytes after the last whole record that nobody was promised."""
    CORRUPT = "corrupt"
    """Records that are not what was written."""
    LOST = "lost"
    """Records that were acknowledged and are no longer there."""
    GIVEN_UP = "given_up"
    """Lost records that an earlier repair has put markers in the place of."""
    INDEX = "index"
    """An index that is missing, short, damaged or from elsewhere. It can be rebuilt."""
    SUMS = "sums"
    """Sums of blocks that do not fit. Bulk reads are slower there."""
    HEAD = "head"
    """A head of a segment that is damaged. It can be rewritten."""
    MISPLACED = "misplaced"
    """A file that belongs to another stream or offset than its name says. None of it is served."""
    CUT = "cut"
    """Whole records that were cut off a log, because their offsets could not be told; they are kept beside it."""
    MANIFEST = "manifest"
    IDENTITY = "identity"
    CONSUMERS = "consumers"


class Finding(Struct, frozen=True, kw_only=True):
    trouble: DamageKind
    text: str
    segment: str | None = None
    first: int | None = None
    """The first offset concerned, and the last."""
    last: int | None = None
    position: int | None = None
    """The byte in the segment."""
    mended: bool = False

    @property
    def loses(self) -> bool:
        """Does it concern records that were acknowledged?"""
        return self.trouble in (DamageKind.CORRUPT, DamageKind.LOST, DamageKind.MISPLACED, DamageKind.CUT)


class Report(Struct, kw_only=True):
    """The outcome of a check or a repair."""

    stream: str
    segments: int = 0
    records: int = 0
    bytes: int = 0
    first: int = 0
    next: int = 0
    findings: list[Finding] = []

    @property
    def ok(self) -> bool:
        """Is nothing wrong that a repair could mend?"""
        return all(finding.mended or finding.trouble is DamageKind.GIVEN_UP for finding in self.findings)
