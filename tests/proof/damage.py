"""Damages the files of a log in every way, and checks that no intact record is lost and no wrong one is served.

A log is written and read once to learn its contents. Then some of its files are changed as disks, file systems and
people change them: while it is closed, after a kill, or while its writer has it open. Afterwards the log is read,
opened for writing, repaired and read again. A record counts as intact if its bytes are still at their position in a
file of the right segment, whatever that file is called now.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.commands import CatchUpJournal, Push
from penstock.core.model import PushItem, QueueOptions, system_clock
from penstock.errors import CorruptRecord, PenstockError
from penstock.journal.drainer import Drain
from penstock.log.arrow import batches
from penstock.log.check import check, repair
from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.files import DISK
from penstock.log.model import SEGMENT_BYTES_MIN, StreamOptions
from penstock.log.reader import LogReader
from penstock.log.segment import INDEX, LOG, SUMS, file_name, firsts_in
from penstock.log.writer import Log
from penstock.store.sqlite import SqliteStore

OPTIONS = StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)
SUFFIXES = (LOG, INDEX, SUMS)
RECORDS = 180
Truth = dict[int, bytes]


@dataclass
class Place:
    """The position of a record before the damage."""

    first: int
    start: int
    data: bytes


@dataclass
class Sound:
    """An undamaged log with the contents and position of each record."""

    folder: Path
    name: str
    truth: Truth = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    other: Path | None = None
    """A similar log of another stream, whose files some kinds of damage copy."""


def make_stream(folder: Path, name: str, chance: random.Random, *, equal: bool, killed: bool) -> Path:
    log = Log.create(folder, name, OPTIONS)
    for first in range(0, RECORDS, 20):
        sizes = [1_000 if equal else chance.randrange(2_000) for _ in range(20)]
        log.append([b"%s %d " % (name.encode(), first + at) + chance.randbytes(size) for at, size in enumerate(sizes)])
        if killed and first == 120:
            log._checkpoint()
    Consumers(folder, name, files=DISK, clock=system_clock).submit(CommitPosition(consumer="c", offset=RECORDS - 1))
    log.abandon() if killed else log.close()
    return folder


def make_journal(folder: Path, name: str, chance: random.Random, *, equal: bool, killed: bool) -> Path:
    """Write a journal through a server's drainer, in segments small enough to have several."""
    with closing(SqliteStore(folder.with_suffix(".db"), durability="relaxed", journal=True)) as store:
        drain = Drain.open(store, folder, options=OPTIONS)
        assert drain is not None
        for _ in range(RECORDS // 2):
            payload = chance.randbytes(2_000 if equal else chance.randrange(4_000))
            store.apply([Push(queue="q", messages=[PushItem(payload=payload)], create=QueueOptions())])
            store.apply([CatchUpJournal()])
            while command := drain.step():
                store.apply([command])
        drain.log.abandon() if killed else drain.close()
    return folder


MAKERS: dict[str, tuple[Callable[..., Path], bool, bool]] = {
    "closed": (make_stream, False, False),
    "closed, records of one size": (make_stream, True, False),
    "killed": (make_stream, False, True),
    "journal": (make_journal, True, False),
    "journal, killed": (make_journal, False, True),
}


def make_sound(folder: Path, how: str, seed: int) -> Sound:
    maker, equal, killed = MAKERS[how]
    chance = random.Random(seed)
    name = "journal" if maker is make_journal else "s"
    sound = Sound(maker(folder / "sound", name, chance, equal=equal, killed=killed), name)
    sound.other = maker(folder / "other", name, chance, equal=equal, killed=killed)
    copy = Path(shutil.copytree(sound.folder, folder / "read"))
    with LogReader(copy) as log:
        for first in log._firsts:
            segment = log.segment_of(first)
            ends = segment.ends(0, segment.count)
            data = segment.path.read_bytes()
            for number in range(segment.count):
                whole = data[ends[number] : ends[number + 1]]
                sound.places[first + number] = Place(first, ends[number], whole)
                sound.truth[first + number] = whole[24:]
    shutil.rmtree(copy)
    return sound


class Damage:
    """Random damage to the files in a folder."""

    def __init__(self, folder: Path, other: Path, chance: random.Random) -> None:
        self.folder = folder
        self.other = other
        self.chance = chance
        self.done = ""

    def _file(self, suffix: str) -> Path:
        found = [path for path in sorted(self.folder.glob(f"*{suffix}")) if path.stat().st_size]
        return self.chance.choice(found) if found else self.folder / "manifest"

    def _firsts(self) -> list[int]:
        return firsts_in(self.folder)

    def flip(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        path.write_bytes(data)

    def high_bit(self, path: Path) -> None:
        """Set the high bit of an index entry, so that it points beyond the end of the file."""
        data = bytearray(path.read_bytes())
        entries = range(67, len(data), 4) or range(len(data) - 1, len(data))
        data[self.chance.choice(entries)] |= 0x80
        path.write_bytes(data)

    def truncate(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[: self.chance.randrange(path.stat().st_size)])

    def garbage(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        at = self.chance.randrange(len(data))
        size = min(len(data) - at, self.chance.choice((1, 8, 100, 512, 4096)))
        data[at : at + size] = self.chance.choice((bytes(size), b"\xff" * size, self.chance.randbytes(size)))
        path.write_bytes(data)

    def nothing_but_garbage(self, path: Path) -> None:
        path.write_bytes(self.chance.randbytes(path.stat().st_size))

    def grow(self, path: Path) -> None:
        with path.open("ab") as file:
            file.write(self.chance.choice((bytes(40), self.chance.randbytes(333), b"\xff" * 8)))

    def shift(self, path: Path) -> None:
        data = path.read_bytes()
        at, size = self.chance.randrange(len(data)), self.chance.choice((1, 4, 8, 400))
        path.write_bytes(data[:at] + data[at + size :])

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def from_elsewhere(self, path: Path) -> None:
        """Replace a file with the same file of another stream."""
        theirs = self.other / path.name
        if not theirs.exists():
            theirs = self.chance.choice(sorted(self.other.glob(f"*{path.suffix}")))
        path.write_bytes(theirs.read_bytes())

    def swap(self, suffixes: tuple[str, ...]) -> None:
        one, two = self.chance.sample(self._firsts(), 2)
        for suffix in suffixes:
            low, high = self.folder / file_name(one, suffix), self.folder / file_name(two, suffix)
            if low.exists() and high.exists():
                between = low.with_suffix(".swap")
                low.rename(between)
                high.rename(low)
                between.rename(high)

    def copy(self, suffixes: tuple[str, ...]) -> None:
        """Copy a segment to another first offset: over another segment, between two, or after the last."""
        firsts = self._firsts()
        source = self.chance.choice(firsts)
        target = self.chance.choice((self.chance.choice(firsts), self.chance.randrange(firsts[-1] + 1_000)))
        for suffix in suffixes:
            path = self.folder / file_name(source, suffix)
            if source != target and path.exists():
                shutil.copy(path, self.folder / file_name(target, suffix))

    def lose_segment(self, *names: str) -> None:
        first = self._firsts()[-1] if names else self.chance.choice(self._firsts())
        for suffix in SUFFIXES:
            (self.folder / file_name(first, suffix)).unlink(missing_ok=True)
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


ON_FILES = ("flip", "truncate", "garbage", "nothing_but_garbage", "grow", "shift", "delete", "from_elsewhere")
FILES = {"segment": LOG, "index": INDEX, "sums": SUMS, "manifest": "manifest", "manifest copy": "manifest.copy"}
FILES |= {"identity": "stream", "positions": "consumers"}


def _on_file(kind: str, suffix: str) -> Callable[[Damage], None]:
    return lambda damage: getattr(damage, kind)(damage._file(suffix))


def _kinds() -> Iterator[tuple[str, Callable[[Damage], None]]]:
    for what, suffix in FILES.items():
        for kind in ON_FILES:
            yield f"{kind} {what}", _on_file(kind, suffix)
    yield "high_bit index", _on_file("high_bit", INDEX)
    for name, suffixes in (("segments", (LOG,)), ("indexes", (INDEX,)), ("segments with all", SUFFIXES)):
        yield f"swap {name}", lambda damage, suffixes=suffixes: damage.swap(suffixes)
        yield f"copy {name}", lambda damage, suffixes=suffixes: damage.copy(suffixes)
    yield "lose a segment", lambda damage: damage.lose_segment()
    yield "lose the last segment and the manifest", lambda damage: damage.lose_segment("manifest")
    yield "lose the last segment and both manifests", lambda damage: damage.lose_segment("manifest", "manifest.copy")


KINDS = dict(_kinds())
# Damage that is skipped while a writer has the log open, because removed files cannot be recovered.
NOT_WHILE_OPEN = ("delete", "lose")


@dataclass
class Outcome:
    cases: Counter[str] = field(default_factory=Counter)
    intact: int = 0
    served: int = 0
    violations: list[str] = field(default_factory=list)


def intact_places(sound: Sound, folder: Path) -> set[int]:
    """Return the offsets whose bytes are unchanged in a file of the right segment, whatever it is called now."""
    heads: dict[bytes, bytes] = {}
    for path in folder.glob(f"*{LOG}"):
        data = path.read_bytes()
        for copy in (data[:32], data[32:64]):
            heads.setdefault(copy, data)
    found = set()
    for offset, place in sound.places.items():
        original = (sound.folder / file_name(place.first)).read_bytes()[:32]
        named = folder / file_name(place.first)
        candidates = [heads.get(original, b"")]
        if original not in heads and named.exists():
            candidates.append(named.read_bytes())
        if any(data[place.start : place.start + len(place.data)] == place.data for data in candidates):
            found.add(offset)
    return found


def read_all(log: LogReader) -> Truth:
    served: Truth = {}
    at, end = log.first_offset, log.next_offset
    while at < end:
        try:
            page = log.read(at)
        except CorruptRecord:
            at += 1
        else:
            served |= {record.offset: record.data for record in page.records}
            at = page.next
    return served


def columns_of(log: LogReader) -> Truth:
    """Read records one at a time through the Arrow reader."""
    served: Truth = {}
    for offset in range(log.first_offset, log.next_offset, 37):
        with suppress(CorruptRecord):
            for batch in batches(log, offset, offset + 1):
                served |= dict(zip(batch["offset"].to_pylist(), batch["data"].to_pylist(), strict=True))
    return served


class Trial:
    """Reads one damaged copy of a log through every reader."""

    def __init__(self, sound: Sound, folder: Path, what: str, outcome: Outcome) -> None:
        self.sound = sound
        self.folder = folder
        self.what = what
        self.outcome = outcome
        self.intact = intact_places(sound, folder)

    def judge(self, step: str, served: Truth, *, complete: bool = True) -> None:
        truth = self.sound.truth
        wrong = [offset for offset, data in served.items() if truth.get(offset, data) != data]
        lost = sorted(self.intact - set(served)) if complete else []
        self.outcome.served += len(served)
        if wrong:
            self.outcome.violations.append(f"{self.what}, {step}: {len(wrong)} wrong records from {wrong[0]} on")
        if lost:
            self.outcome.violations.append(f"{self.what}, {step}: {len(lost)} intact records lost from {lost[0]} on")

    def run(self, *, reuse_may_happen: bool) -> None:
        self.outcome.intact += len(self.intact)
        with suppress(PenstockError), LogReader(self.folder) as log:
            self.judge("read", read_all(log), complete=False)
            self.judge("columns", columns_of(log), complete=False)
        with suppress(PenstockError), Log(self.folder) as log:
            self.judge("opened", read_all(log))
        check(self.folder, self.sound.name)
        repair(self.folder, self.sound.name)
        report = check(self.folder, self.sound.name)
        if not report.ok:
            self.outcome.violations.append(f"{self.what}: still damaged after repair: {report.findings}")
        with LogReader(self.folder) as log:
            self.judge("repaired", read_all(log))
            self.judge("repaired, columns", columns_of(log), complete=False)
        with Log(self.folder) as log:
            added = log.append([b"new"]).first
        if added <= max(self.sound.truth) and not reuse_may_happen:
            self.outcome.violations.append(f"{self.what}: offset {added} was used again")


def run_closed(sound: Sound, folder: Path, kind: str, seed: int, outcome: Outcome) -> None:
    copy = Path(shutil.copytree(sound.folder, folder / "damaged"))
    assert sound.other is not None
    damage = Damage(copy, sound.other, random.Random(seed))
    KINDS[kind](damage)
    trial = Trial(sound, copy, f"{kind}, seed {seed}", outcome)
    # A journal gets its offsets from the store, so its log alone may reuse those it lost. A stream's consumer positions
    # also record how far it had grown, so it must never reuse an offset.
    trial.run(reuse_may_happen=sound.name == "journal")
    shutil.rmtree(copy)


def run_open(sound: Sound, folder: Path, kind: str, seed: int, outcome: Outcome) -> None:
    """Damage a log while its writer has it open, and go on reading through the writer."""
    copy = Path(shutil.copytree(sound.folder, folder / "damaged"))
    assert sound.other is not None
    with Log(copy) as log:
        KINDS[kind](Damage(copy, sound.other, random.Random(seed)))
        trial = Trial(sound, copy, f"{kind} while open, seed {seed}", outcome)
        with suppress(PenstockError):
            trial.judge("writer", read_all(log), complete=kind.endswith(" index"))
            trial.judge("writer, columns", columns_of(log), complete=False)
    with suppress(PenstockError), Log(copy) as log:
        trial.judge("opened again", read_all(log))
    shutil.rmtree(copy)


def run(folder: Path, seed: int, rounds: int, makers: Sequence[str] = tuple(MAKERS), *, one_in: int = 1) -> Outcome:
    """Apply every kind of damage to every kind of log, closed and open, `rounds` times; or one case in `one_in`."""
    outcome = Outcome()
    for how in makers:
        place = folder / how.replace(", ", "-").replace(" ", "-")
        place.mkdir(parents=True)
        sound = make_sound(place, how, seed)
        trials = [
            (kind, trial, seed + number)
            for number in range(rounds)
            for kind in KINDS
            for trial in (run_closed, run_open)
            if trial is run_closed or not kind.startswith(NOT_WHILE_OPEN)
        ]
        for kind, trial, trial_seed in trials[list(MAKERS).index(how) % one_in :: one_in]:
            before = len(outcome.violations)
            try:
                trial(sound, place, kind, trial_seed, outcome)
            except Exception as error:
                outcome.violations.append(f"{kind}, seed {trial_seed}: {error!r}")
            outcome.violations[before:] = [f"{how}: {each}" for each in outcome.violations[before:]]
            outcome.cases[how] += 1
            shutil.rmtree(place / "damaged", ignore_errors=True)
    return outcome
