"""Rows of files and of the lake become messages; an invalid row is reported before anything is pushed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from penstock.core.model import Delivery
from penstock.errors import InvalidInput
from penstock.journal.events import BODY_BYTES_MAX
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE, SILVER
from penstock.pipeline.replay import count_too_large, pushed_messages, rows_of_files, stage_frame, with_lives
from penstock.pipeline.run import Pipeline
from penstock.pipeline.sink.staging import Batch
from penstock.pipeline.source.options import WriteOptions, write_options
from tests.spark.support import Work

pytestmark = pytest.mark.spark


def into(work: Work) -> WriteOptions:
    return write_options({"url": str(work.data), "queue": "mail"})


def loaded(spark: Any, work: Work, file: Path) -> list[Delivery]:
    options = into(work)
    Batch(options, file.name).publish(stage_frame(rows_of_files(spark, str(file)), options))
    found = work.lease("mail", 100)
    work.ack(*found)
    return sorted(found, key=lambda message: message.payload)


def test_numbers_and_headers_of_a_csv_are_what_they_say(spark: Any, work: Work, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('payload,priority,ttl_ms,headers\na,5,60000,"{""x"": ""1"", ""y"": 2}"\n"say ""b""",,,\n')
    one, other = loaded(spark, work, file)
    assert (one.payload, one.priority, one.headers) == (b"a", 5, {"x": "1", "y": "2"})
    assert (other.payload, other.priority, other.headers) == (b'say "b"', 0, None)


def test_an_object_is_a_json_payload_with_its_own_fields_alone(spark: Any, work: Work, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"payload": {"a": 1, "b": None}, "headers": {"x": "1"}, "key": 7},
        {"payload": {"c": [1.5, "d"]}, "headers": {"y": "2", "z": None}},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = loaded(spark, work, file)
    assert [json.loads(message.payload) for message in found] == [row["payload"] for row in rows]
    assert {message.content for message in found} == {"json"}
    assert [message.headers for message in found] == [{"x": "1"}, {"y": "2"}]


def test_a_line_of_json_is_a_payload_as_it_stands(spark: Any, work: Work, tmp_path: Path) -> None:
    lines = ['{"n": 1, "big": 12345678901234567890.25}', '{"n": 1.50,  "a": null}', '{"other": "\u00e9 \\u00e9"}']
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([*lines, "", '  [{"z":1}, {"z":2.0}]']) + "\n")
    assert [message.payload.decode() for message in loaded(spark, work, file)] == sorted(
        [*lines, '{"z":1}', '{"z":2.0}']
    )


def test_a_column_of_objects_or_numbers_is_json_too(spark: Any, work: Work, tmp_path: Path) -> None:
    payload = "named_struct('id', id, 'none', cast(null AS string))"
    for number, what in enumerate(("id", payload)):
        spark.range(1).selectExpr(f"{what} AS payload", "map('k', id) AS headers").write.parquet(
            str(tmp_path / f"{number}.parquet")
        )
    for number, expected in enumerate((b"0", b'{"id":0,"none":null}')):
        [message] = loaded(spark, work, tmp_path / f"{number}.parquet")
        assert (message.payload, message.content, message.headers) == (expected, "json", {"k": "0"})


def test_a_file_that_was_put_right_is_loaded_by_the_same_command(spark: Any, work: Work, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("payload,priority\na,1\nb,high\n")
    with pytest.raises(InvalidInput, match="nothing was pushed: priority must be a whole number, not 'high'"):
        loaded(spark, work, file)
    assert not list(into(work).staging.glob("*.arrow"))
    file.write_text("payload,priority\na,1\nb,2\n")
    assert [message.priority for message in loaded(spark, work, file)] == [1, 2]


def test_a_body_that_the_journal_did_not_keep_is_left_out_and_counted(spark: Any, work: Work, lake: Lake) -> None:
    large = "x" * (BODY_BYTES_MAX + 1)
    work.push("small", large, "", queue="from")
    work.push(large, queue="elsewhere")
    with Pipeline(spark, work.drained(), lake) as pipeline:
        list(pipeline.steps())
    events, lives = lake[BRONZE].read(spark), lake[SILVER].read(spark)
    where = "queue = 'from'"
    found = pushed_messages(with_lives(events, lives), where).collect()
    assert sorted(bytes(row.payload) for row in found) == [b"", b"small"]
    assert count_too_large(events, lives, where) == 1
    assert count_too_large(events, lives, "queue = 'neither'") == 0


def test_a_line_break_within_quotes_is_part_of_a_message(spark: Any, work: Work, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('payload,priority\n"line one\nline two",1\nb,2\n')
    assert [message.payload for message in loaded(spark, work, file)] == [b"b", b"line one\nline two"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.jsonl", '{"payload": "a"}\n{"payload": "b'), ("rows.csv", "payload,priority\na,1\nb,2,3\n")],
)
def test_a_file_with_a_row_that_cannot_be_read_is_refused(
    spark: Any, work: Work, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises((Py4JJavaError, InvalidInput), match=r"MALFORMED|cannot read a row"):
        loaded(spark, work, file)
    assert work.store.find_queue("mail") is None or work.lease("mail", 1) == []


def test_rows_become_json_with_microseconds_and_any_name(spark: Any, work: Work, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    spark.sql("SELECT timestamp '2026-01-02 03:04:05.123456' AS `a``b`").write.parquet(str(file))
    [message] = loaded(spark, work, file)
    assert json.loads(message.payload) == {"a`b": "2026-01-02T03:04:05.123456Z"}


def test_a_file_may_be_one_json_list_over_several_lines(spark: Any, work: Work, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('[\n  {"n": 1.50},\n  {"n": 9007199254740993, "a": null}\n]\n')
    assert [message.payload for message in loaded(spark, work, file)] == [
        b'{"n": 1.50}',
        b'{"n": 9007199254740993, "a": null}',
    ]
    other = tmp_path / "messages.json"
    other.write_text('[\n{"payload": "a", "priority": 3},\n{"payload": "b"}\n]')
    assert [(message.payload, message.priority) for message in loaded(spark, work, other)] == [(b"a", 3), (b"b", 0)]


@pytest.mark.parametrize("text", ['{"payload": "a"}\n{"payload": "b\n', '[{"n": 1}]\n[{"n": 2\n', "[1, 2"])
def test_lines_of_json_of_which_one_is_broken_are_not_one_text(
    spark: Any, work: Work, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match="cannot read a row"):
        loaded(spark, work, file)


def test_packed_files_are_read(spark: Any, work: Work, tmp_path: Path) -> None:
    for name, text in (("rows.csv.gz", b"payload\na\n"), ("rows.jsonl.gz", b'{"n":1}\n')):
        (tmp_path / name).write_bytes(gzip.compress(text))
    assert [message.payload for message in loaded(spark, work, tmp_path / "rows.csv.gz")] == [b"a"]
    assert [message.payload for message in loaded(spark, work, tmp_path / "rows.jsonl.gz")] == [b'{"n":1}']


def test_a_rate_is_kept_evenly_and_not_by_bursts(spark: Any, work: Work) -> None:
    options, chunks = into(work), list[int]()
    batch = Batch(options, "slowly")
    batch.decide(stage_frame(spark.range(7).selectExpr("cast(id AS string) AS payload").coalesce(1), options))
    batch.send(rate=20, advance=chunks.append)
    assert chunks == [2, 2, 2, 1]
    assert len(work.lease("mail", 100)) == 7
