"""The JVM reader returns the same rows and errors as the Python reader."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import tools.jar
from penstock.core.model import system_clock
from penstock.errors import CannotOpen
from penstock.journal.arrow import SCHEMA
from penstock.journal.drainer import journal_folder
from penstock.journal.events import EVENTS_MAX, Kind, Row, columns_of, encode_detail, encode_events
from penstock.log.check import repair
from penstock.log.model import SEGMENT_BYTES_MIN, StreamOptions
from penstock.log.retention import TrimRequest, trim
from penstock.log.segment import file_name, firsts_in
from penstock.log.writer import Log
from penstock.pipeline.runtime import jar
from penstock.pipeline.runtime.java import find_java
from penstock.pipeline.source.data_source import PenstockSource
from penstock.pipeline.source.log_sources import FolderLocation, location_of
from tests.spark.support import Work
from tests.unit.log.support import flip, index_of, log_of, write_as_0_1_0

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
DETAILS = (b"", encode_detail(key="k", headers={"a": "b"}), encode_detail(error="ünlucky"))
IN_JAVA = "read by Java"
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Reading:
    """The same frame, by Java and by Python."""

    def __init__(self, spark: Any, data: Path, log: Path) -> None:
        self.spark, self.data, self._log = spark, data, log

    def frame(self, schema: str | None = None, **options: str) -> Any:
        reader = self.spark.read.format("penstock").options(**{"minPartitions": "3", **options})
        return (reader if schema is None else reader.schema(schema)).load(str(self.data))

    @contextmanager
    def in_python(self) -> Iterator[None]:
        self.spark.conf.set(jar.RULES_LEFT_OUT, jar.RULE)
        yield
        self.spark.conf.unset(jar.RULES_LEFT_OUT)

    def check(self, schema: str | None = None, **options: str) -> list[tuple[Any, ...]]:
        """Both give these rows, and Java needs no help."""
        before = self._log.stat().st_size
        found = self.check_with_help(schema, **options)
        assert b"Python reads" not in self._log.read_bytes()[before:]
        return found

    def check_with_help(self, schema: str | None = None, **options: str) -> list[tuple[Any, ...]]:
        frame = self.frame(schema, **options)
        assert IN_JAVA in plan_of(frame)
        found = [tuple(row) for row in frame.collect()]
        with self.in_python():
            frame = self.frame(schema, **options)
            assert IN_JAVA not in plan_of(frame)
            assert [tuple(row) for row in frame.collect()] == found
        return found

    def after_planning(self, change: Callable[[], object], **options: str) -> tuple[Any, Any]:
        """What both answer, if something happens to the log between the plan and the tasks."""
        java = self.frame("offset bigint", **options)
        java._jdf.queryExecution().toRdd().getNumPartitions()
        with self.in_python():
            python = self.frame("offset bigint", **options)
            python._jdf.queryExecution().toRdd().getNumPartitions()
        change()
        return answer_of(java), answer_of(python)


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def answer_of(frame: Any) -> list[int] | str:
    """Rows, or the words of the error."""
    try:
        return [row[0] for row in frame.collect()]
    except PySparkException as error:
        return re.findall(r"penstock\.errors\.(\w+: .*)", str(error))[0]


@pytest.fixture
def reading(spark: Any, spark_log: Path, tmp_path: Path) -> Reading:
    spark.dataSource.register(PenstockSource)
    return Reading(spark, tmp_path, spark_log)


def records(chance: random.Random, count: int) -> list[bytes]:
    """Whatever a record of the journal may look like, and of every kind."""
    made = []
    for number in range(count):
        kind = list(Kind)[number % len(Kind)]
        size = chance.choice((1, 1, 2, 7, 100))
        first = row(chance)
        rows = [(first[0] + place if first[0] else 0, *first[1:]) for place in range(size)]
        if chance.random() < 0.5:
            rows = [row(chance) for _ in range(size)]
        details = chance.choice((None, [chance.choice(DETAILS)] * size, [chance.choice(DETAILS) for _ in range(size)]))
        bodies = [chance.randbytes(chance.randint(0, 40)) for _ in range(size)] if chance.random() < 0.5 else None
        name = chance.choice((b"mail", "größer".encode(), b"x" * 255))
        made.append(
            encode_events(
                kind,
                chance.choice((0, NOW)),
                chance.choice((1, 262_143, 0xFFFF_FFFF)),
                name,
                chance.getrandbits(30),
                size,
                columns_of(rows),
                chance.randint(0, 15),
                details,
                bodies,
            )
        )
    return made


def row(chance: random.Random) -> Row:
    times = [chance.choice((0, NOW, NOW + chance.randint(0, 10**9))) for _ in range(4)]
    priority = chance.choice((0, -(2**31) + 1, 2**31 - 1))
    return (chance.choice((0, 1, chance.getrandbits(43))), *times, chance.randint(0, 9), priority, chance.randint(0, 2))  # type: ignore[return-value]


def write(folder: Path, encoded: list[bytes], roll_last: bool = False) -> None:
    with Log.create(folder, "journal", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)) as log:
        for record in encoded:
            log.append_encoded(record)
        if roll_last:
            with log.turn:
                log.roll()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of several segments, the last of which is not sealed."""
    folder = journal_folder(tmp_path / "penstock.db")
    write(folder, records(random.Random(1), 300))
    assert len(firsts_in(folder)) > 4
    return folder


def test_events_of_every_kind_and_form_are_the_same(reading: Reading, journal: Path) -> None:
    found = reading.check()
    assert {row[SCHEMA.get_field_index("kind")] for row in found} == {kind.name.lower() for kind in Kind}
    assert any(None in row for row in found)


def test_so_are_those_of_a_store_at_work(reading: Reading, work: Work) -> None:
    work.some(300)
    work.drained()
    reading.data = work.data
    assert reading.check()


def test_so_are_some_columns_in_any_order(reading: Reading, journal: Path) -> None:
    reading.check("body binary, offset bigint, uuid string")
    reading.check("content string")
    reading.check("details string, number int, marks int, at timestamp")


def test_so_are_ranges_that_begin_and_end_anywhere(reading: Reading, journal: Path) -> None:
    for start, end in ((0, 1), (7, 131), (290, 300), (130, 131)):
        found = reading.check("offset bigint, number int", startingOffsets=str(start), endingOffsets=str(end))
        assert sorted({row[0] for row in found}) == list(range(start, end))


def test_so_are_records_larger_than_a_batch_or_a_buffer(reading: Reading, tmp_path: Path) -> None:
    many = [(number, NOW, 0, 0, NOW, 0, number % 3, 1) for number in range(1, 12 * EVENTS_MAX)]
    large = [bytes([number]) * (1 << 20) for number in range(3)]
    encoded = [
        encode_events(Kind.ACKED, NOW, 1, b"q", 5, len(many), columns_of(many)),
        encode_events(Kind.PUSHED, NOW, 1, b"q", 5, 3, columns_of(many[:3]), bodies=large),
    ]
    write(journal_folder(tmp_path / "penstock.db"), [encoded[0], *encoded, encoded[1]])
    found = reading.check("id bigint, priority int, body binary")
    assert len(found) == 2 * len(many) + 6


def test_a_log_whose_last_segment_is_sealed_or_empty_is_read(reading: Reading, tmp_path: Path) -> None:
    write(journal_folder(tmp_path / "penstock.db"), records(random.Random(2), 40), roll_last=True)
    assert reading.check("offset bigint, id bigint")


def test_only_columns_that_are_used_are_read(reading: Reading, journal: Path) -> None:
    frame = reading.frame().where("kind = 'pushed'").groupBy("queue").count()
    assert re.search(r"BatchScan penstock\[kind#\d+, queue#\d+\]", plan_of(frame))
    counted = reading.frame().count()
    with reading.in_python():
        assert sorted(reading.frame().where("kind = 'pushed'").groupBy("queue").count().collect()) == sorted(
            frame.collect()
        )
        assert reading.frame().count() == counted


def test_a_stream_is_the_same(reading: Reading, tmp_path: Path) -> None:
    folder = tmp_path / "penstock.db.streams" / "flat" / "clicks"
    with Log.create(folder, "clicks", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)) as log:
        for number in range(40):
            log.append([b"%d" % number * size for size in range(100)])
    found = reading.check(stream="clicks")
    assert [row[0] for row in found] == list(range(4_000))
    reading.check("data binary, offset bigint", stream="clicks", startingOffsets="55", endingOffsets="3210")


def test_a_flipped_bit_is_the_same_error(reading: Reading, journal: Path) -> None:
    first = firsts_in(journal)[2]
    flip(log_of(journal, first), 8 * 5_000)
    java = answer_of(reading.frame("offset bigint"))
    with reading.in_python():
        assert answer_of(reading.frame("offset bigint")) == java
    assert "is damaged: byte" in java
    assert file_name(first) in java


def test_what_a_repair_gave_up_is_passed_over(reading: Reading, journal: Path) -> None:
    before = {row[0] for row in reading.check("offset bigint")}
    flip(log_of(journal, firsts_in(journal)[2]), 8 * 5_000)
    repair(journal, "journal")
    after = {row[0] for row in reading.check("offset bigint")}
    assert len(before - after) == 1


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: flip(path, 8 * 69)])
@pytest.mark.parametrize("place", [1, -1])
def test_an_index_that_is_missing_or_wrong_is_not_believed(
    reading: Reading, journal: Path, damage: Callable[[Path], None], place: int
) -> None:
    expected = reading.check("offset bigint, number int, id bigint")
    damage(index_of(journal, firsts_in(journal)[place]))
    assert reading.check_with_help("offset bigint, number int, id bigint") == expected


def test_segments_of_0_1_0_which_have_no_heads_are_the_same(reading: Reading, tmp_path: Path) -> None:
    encoded, folder = records(random.Random(3), 60), journal_folder(tmp_path / "penstock.db")
    parts = [encoded[:25], encoded[25:]]
    write_as_0_1_0(folder, [(b"".join(part), [len(record) for record in part]) for part in parts], "journal")
    assert {row[0] for row in reading.check("offset bigint")} == set(range(60))
    with Log(folder) as log, log.turn:
        log.roll()
    with Log(folder) as log:
        log.append_encoded(encoded[0])
    assert {row[0] for row in reading.check("offset bigint")} == set(range(61))


def test_swapped_segments_are_not_believed(reading: Reading, tmp_path: Path) -> None:
    folder = tmp_path / "penstock.db.streams" / "flat" / "clicks"
    with Log.create(folder, "clicks", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)) as log:
        for number in range(30):
            log.append([b"%08d" % (100 * number + place) + bytes(92) for place in range(100)])
    one, two = (log_of(folder, first) for first in firsts_in(folder)[:2])
    one.rename(folder / "between")
    two.rename(one)
    (folder / "between").rename(two)
    found = reading.check_with_help("offset bigint, data binary", stream="clicks")
    assert [int(data[:8]) for _, data in found] == list(range(3_000))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_are_trimmed_before_their_task_runs_are_an_error_or_left_out(
    reading: Reading, journal: Path, fails: str
) -> None:
    kept = firsts_in(journal)[2]

    def forget() -> None:
        with Log(journal) as log:
            trim(log, [], TrimRequest(before=kept, force=True), system_clock())

    java, python = reading.after_planning(forget, failOnDataLoss=fails)
    assert java == python
    assert java.startswith("OffsetTrimmed") if fails == "true" else set(java) == set(range(kept, 300))


def test_a_log_that_is_made_anew_before_its_task_runs_is_not_taken_for_the_old_one(
    reading: Reading, journal: Path
) -> None:
    def replace() -> None:
        journal.rename(journal.with_name("old"))
        write(journal, records(random.Random(3), 20))

    java, python = reading.after_planning(replace, endingOffsets="20")
    assert java == python


OURS = "open_session(Path('spark.log'), master='local[1]', brief=True)"
YOURS = "SparkSession.builder.master('local[1]').config(map=settings()).getOrCreate()"
SCRIPT = """
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.pipeline.runtime import jar
from penstock.pipeline.runtime.jar import settings
from penstock.pipeline.runtime.session import open_session
jar.FOLDER = {folder}
spark = {session}
frame = spark.read.format("penstock").load(".")
print("read by Java" in frame._jdf.queryExecution().executedPlan().toString(), frame.count())
"""


@pytest.mark.parametrize(("session", "with_jar"), [(OURS, False), (YOURS, True)])
def test_any_session_reads_with_the_jar_or_without(
    reading: Reading, journal: Path, session: str, with_jar: bool
) -> None:
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    folder = "jar.FOLDER" if with_jar else "Path()"
    command = [sys.executable, "-c", SCRIPT.format(session=session, folder=folder)]
    ran = subprocess.run(command, cwd=reading.data, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(with_jar), str(reading.frame().count())]


def test_a_jar_of_another_version_of_spark_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jar.settings()
    monkeypatch.setattr("pyspark.__version__", "4.99.0")
    assert jar.settings() == {}


def test_a_jar_that_cannot_be_compiled_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Wrong.scala").write_text("object Wrong { val number: Int = true }")
    monkeypatch.setattr(jar, "FOLDER", tmp_path)
    with pytest.raises(CannotOpen, match=r"cannot compile the log reader: .*Wrong\.scala:1"):
        tools.jar.build()
    assert [path.name for path in tmp_path.iterdir()] == ["Wrong.scala"]
    assert jar.settings() == {}


@pytest.mark.parametrize("without", ["0", "1"])
def test_a_wheel_holds_the_jar_unless_it_is_built_without(tmp_path: Path, without: str) -> None:
    build = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    environment = {**os.environ, "PENSTOCK_WITHOUT_JAR": without}
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=tools.jar.ROOT, env=environment, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = [name for name in wheel.namelist() if name.endswith(".jar")]
    wanted = [] if without == "1" else [str(jar.jar_path().relative_to(tools.jar.SOURCE))]
    assert packed == wanted


def test_a_build_that_finds_no_java_fails_and_says_what_to_do(tmp_path: Path) -> None:
    build = (
        "import sys, hatchling.build, penstock.pipeline.runtime.jar as jar, penstock.pipeline.runtime.java as java\n"
        "from pathlib import Path\n"
        "jar.FOLDER, java._machine_homes, java._from_wheel = Path(sys.argv[1]), lambda: [], lambda: None\n"
        "hatchling.build.build_wheel(sys.argv[1])"
    )
    command = [sys.executable, "-c", build, str(tmp_path)]
    failed = subprocess.run(command, cwd=tools.jar.ROOT, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "no Java of version 17 to 22 found" in failed.stderr
    assert "PENSTOCK_WITHOUT_JAR=1 builds a wheel without the jar" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_still_there_of_a_log_that_is_trimmed_while_it_is_read_is_not_left_out(
    reading: Reading, spark: Any, tmp_path: Path
) -> None:
    place = location_of(str(tmp_path), "s")
    assert isinstance(place, FolderLocation)
    folder = Path(place.folder)
    folder.parent.mkdir(parents=True)
    with Log.create(folder, "s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)) as log:
        for number in range(1_500):
            log.append([b"%08d" % number + bytes(2_000)])
    kept = firsts_in(folder)[-3]

    def forgetting(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 0:
                with Log(folder) as log:
                    trim(log, [], TrimRequest(before=kept, force=True), system_clock())
            yield batch

    frame = reading.frame("offset bigint, data binary", stream="s", failOnDataLoss="false").coalesce(1)
    assert IN_JAVA in plan_of(frame)
    before = spark.conf.get(BATCH)
    spark.conf.set(BATCH, "10")
    try:
        found = [row[0] for row in frame.mapInArrow(forgetting, "offset bigint, data binary").collect()]
    finally:
        spark.conf.set(BATCH, before)
    assert found == sorted(set(found))
    assert set(range(kept, 1_500)) <= set(found)
