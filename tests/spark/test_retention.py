"""What the lake keeps, for how long, and what it never learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.model import Content, Window
from penstock.errors import InvalidInput
from penstock.pipeline.forget import Forgetting
from penstock.pipeline.lake.gold_history import GoldHistory
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.masking import MASKED, Masker, Masks, mask_body, parse_mask, stored_masks
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, QUEUE_MINUTES, SILVER
from penstock.pipeline.retention import apply_retention, retain, stored_retention, trimmed_before
from penstock.pipeline.run import Pipeline
from penstock.pipeline.source import offset_ranges
from penstock.pipeline.verify import verify
from tests.spark.support import Work, rows_of

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
MARKER = "ada.lovelace@example.com"


def run(spark: Any, work: Work, lake: Lake, **how: Any) -> Any:
    with Pipeline(spark, work.drained(), lake, **how) as pipeline:
        list(pipeline.steps())
        return pipeline.app


def verified(spark: Any, lake: Lake) -> list[str]:
    """The tables that do not hold what bronze adds up to."""
    return [verdict.table for verdict in verify(spark, Lake(lake.folder)) if not verdict.good]


def now_of(work: Work) -> datetime:
    return datetime.fromtimestamp(work.clock() / 1000, UTC)


def test_bodies_go_before_rows_and_what_is_left_still_adds_up(spark: Any, work: Work, lake: Lake) -> None:
    for day in range(3):
        work.some(80, seed=day)
        run(spark, work, lake)
        work.clock.advance(DAY_MS)
    before = rows_of(lake, BRONZE)
    lives = rows_of(lake, SILVER)
    app = run(spark, work, lake)
    retain(lake, {"bronze.bodies": int(1.5 * DAY_MS), "bronze": int(2.5 * DAY_MS)})
    apply_retention(lake, app, now_of(work))
    after = rows_of(lake, BRONZE)
    dropped, emptied = (now_of(work) - timedelta(days=days) for days in (2.5, 1.5))
    assert 0 < len(after) < len(before)
    assert [row["offset"] for row in after] == [row["offset"] for row in before if row["at"] >= dropped]
    assert all(row["body"] is None for row in after if row["at"] < emptied)
    assert [row["body"] for row in after if row["at"] >= emptied] == [
        row["body"] for row in before if row["at"] >= emptied
    ]
    assert rows_of(lake, SILVER) == lives
    assert verified(spark, lake) == []
    # Emptied files are not read again, and later events join what is left.
    version = lake[BRONZE].delta.version()
    assert [(each.files, each.rows) for each in apply_retention(lake, app, now_of(work))] == [(0, 0), (0, 0)]
    assert lake[BRONZE].delta.version() == version
    work.some(40, seed=9)
    run(spark, work, lake)
    assert verified(spark, lake) == []


def test_a_file_that_also_has_new_rows_is_split(spark: Any, work: Work, lake: Lake) -> None:
    work.push("old")
    work.clock.advance(10 * DAY_MS)
    work.push("new")
    app = run(spark, work, lake)
    retain(lake, {"bronze.bodies": 5 * DAY_MS})
    apply_retention(lake, app, now_of(work))
    assert [row["body"] for row in rows_of(lake, BRONZE) if row["kind"] == "pushed"] == [None, b"new"]
    assert len(lake[BRONZE].files()) == 2
    assert lake[BRONZE].compact() == {"removed": 0, "added": 0}  # They stay apart.
    retain(lake, {"bronze.bodies": None, "bronze": 5 * DAY_MS})
    apply_retention(lake, app, now_of(work))
    assert [row["body"] for row in rows_of(lake, BRONZE) if row["kind"] == "pushed"] == [b"new"]


def test_what_silver_or_gold_has_not_read_stays(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    with Pipeline(spark, work.drained(), lake) as pipeline:
        pipeline._bronze(0, pipeline.log.next_offset, True)  # Killed before it derived anything.
        app = pipeline.app
    retain(lake, {"bronze": DAY_MS})
    work.clock.advance(9 * DAY_MS)
    apply_retention(lake, app, now_of(work))
    assert len(rows_of(lake, BRONZE)) == 2
    assert trimmed_before(lake[BRONZE]) is None


def test_analytics_read_gold_though_no_event_is_left(spark: Any, work: Work, lake: Lake) -> None:
    work.some(60)
    app = run(spark, work, lake)
    minutes = rows_of(lake, QUEUE_MINUTES)
    retain(lake, {"bronze": DAY_MS})
    work.clock.advance(9 * DAY_MS)
    apply_retention(lake, app, now_of(work))
    assert rows_of(lake, BRONZE) == []
    history = GoldHistory(lake.folder, app.removeprefix("penstock:"))
    until = history.until()
    assert until is not None
    first = int(minutes[0]["minute"].timestamp() // 60)
    last = int(minutes[-1]["minute"].timestamp() // 60) + 1
    found = history.completed(Window(first, last, 1), last)
    assert sum(found.values()) == sum(row["acked"] for row in minutes)


@pytest.mark.parametrize("limits", [{"gold": 1}, {"bronze.bodies": 2 * DAY_MS, "bronze": DAY_MS}])
def test_a_retention_that_makes_no_sense_is_refused(lake: Lake, limits: dict[str, int | None]) -> None:
    lake.create()
    with pytest.raises(InvalidInput):
        retain(lake, limits)
    assert stored_retention(Lake(lake.folder)) == {}


def test_retention_is_set_once_and_run_and_compact_apply_it(
    work: Work, lake: Lake, command: Callable[..., Result]
) -> None:
    work.push("a")
    at = ("--data", str(work.data))
    work.close_all()
    assert command("run", *at).exit_code == 0
    assert command("retain", "bronze=1d", "silver=forever", *at).exit_code == 0
    assert json.loads(command("retain", *at, "--json").output)["bronze"] == DAY_MS
    assert len(rows_of(lake, BRONZE)) > 0
    ran = command("compact", *at)  # The movable clock of these tests began long ago.
    assert ran.exit_code == 0, ran.output
    assert rows_of(Lake(lake.folder), BRONZE) == []
    assert command("retain", "bronze=soon", *at).exit_code == 2


def texts_in(folder: Path, text: str) -> list[str]:
    """The files of a folder that have a text anywhere, in their bytes or, in Parquet, in any decoded value."""
    found = []
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        raw = file.read_bytes()
        if text.encode() in raw:
            found.append(str(file))
        elif file.suffix == ".parquet":
            with pq.ParquetFile(file) as opened:
                rows, about = opened.read().to_pylist(), opened.metadata.to_dict()
            if text in str(rows) or text in str(about):
                found.append(str(file))
    return found


def test_what_is_forgotten_is_in_no_file_any_more(spark: Any, work: Work, lake: Lake) -> None:
    for part in range(3):
        work.some(40, seed=part)
        work.make(f"p{part}", max_attempts=2)
        work.push(json.dumps({"to": MARKER}), "other", queue=f"p{part}")
        for _ in range(2):
            work.nack(*work.lease(f"p{part}", 2), error=f"cannot send to {MARKER}", delay_ms=0)
        run(spark, work, lake)
    lake[QUEUE_ERRORS].delta.optimize.compact()
    assert len(texts_in(lake.folder, MARKER)) > 3
    found = Forgetting(spark, lake, f"CAST(body AS STRING) LIKE '%{MARKER}%' OR details LIKE '%{MARKER}%'")
    counted = found.found()
    assert counted.messages == 6
    assert found.forget("tests") == counted
    assert texts_in(lake.folder, MARKER) == []
    assert verified(spark, lake) == []
    [request] = pa.Table.from_pylist(rows_in(lake.folder / "audit" / "forget_requests")).to_pylist()
    assert (request["by"], request["messages"]) == ("tests", 6)
    work.some(40, seed=9)
    run(spark, work, Lake(lake.folder))
    assert verified(spark, lake) == []


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def test_errors_of_which_bronze_has_no_events_lose_their_texts(spark: Any, work: Work, lake: Lake) -> None:
    work.make("q", max_attempts=1)
    work.push("a")
    work.nack(*work.lease("q"), error=f"no user {MARKER}")
    app = run(spark, work, lake)
    [before] = rows_of(lake, QUEUE_ERRORS)
    retain(lake, {"bronze": DAY_MS})
    work.clock.advance(9 * DAY_MS)
    apply_retention(lake, app, now_of(work))
    Forgetting(spark, lake, f"exists(errors, e -> e.error LIKE '%{MARKER}%')").forget("tests")
    assert texts_in(lake.folder, MARKER) == []
    assert rows_of(lake, QUEUE_ERRORS) == [before | {"pattern": "", "sample": ""}]


def test_forget_counts_first_asks_and_says_that_the_journal_has_it(
    work: Work, lake: Lake, command: Callable[..., Result]
) -> None:
    work.push(MARKER, "b")
    work.close_all()
    at = ("--data", str(work.data))
    assert command("run", *at).exit_code == 0
    where = ("--where", f"string(body) = '{MARKER}'")
    dry = command("forget", *where, "--dry-run", "--json", *at)
    assert json.loads(dry.stdout) == {
        "messages": 1,
        "bronze_rows": 1,
        "silver_rows": 0,
        "error_rows": 0,
        "model_rows": 0,
        "in_journal": True,
    }
    assert b"ada" in rows_of(lake, BRONZE)[-2]["body"]
    done = command("forget", *where, "--yes", *at)
    assert done.exit_code == 0, done.output
    assert "the journal still has some of these events" in done.stderr
    assert texts_in(lake.folder, MARKER) == []
    assert command("forget", "--where", "nothing = 1", "--yes", *at).exit_code != 0


CARD = st.text("0123456789abcdef", min_size=12, max_size=12).map(lambda text: f"card-{text}")
OTHERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(CARD, OTHERS, st.booleans(), st.sampled_from(["$.card", "$.a.card", "$.items[*].card", "$.a[*].b[*].card"]))
def test_a_masked_value_is_in_no_body(card: str, other: Any, ascii_only: bool, mask: str) -> None:
    _, steps = parse_mask(mask)
    value: Any = card
    for step in reversed(steps):
        value = {step: value, "other": other} if step else [other, value]
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    for text in (body, body.replace(b"card", b"c\\u0061rd", 1)):
        masked, is_json = mask_body(text, [steps], is_json=True)
        if is_json:
            assert masked is not None
            assert card not in json.dumps(json.loads(masked))
            assert MASKED in json.dumps(json.loads(masked))


def test_of_a_key_that_is_there_twice_both_values_go() -> None:
    body = b'{"a": {"card": "1234"}, "a": 2, "n": 1.10, "big": 123456789012345678901234567890}'
    assert mask_body(body, [("a", "card")], is_json=True) == (
        b'{"a":2,"n":1.10,"big":123456789012345678901234567890}',
        True,
    )


def test_a_body_without_the_field_stays_byte_for_byte() -> None:
    body = b'{ "n": 1.10 }'
    assert mask_body(body, [("card",)], is_json=True) == (body, True)


@pytest.mark.parametrize("small", [True, False], ids=["driver", "tasks"])
def test_bronze_never_sees_masked_fields_and_later_runs_keep_the_masks(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setattr(offset_ranges, "SMALL_BYTES", offset_ranges.SMALL_BYTES if small else 0)
    work.push('{"card": "4111-1111", "n": 1}', content=Content.JSON, headers={"card": "4111-1111", "x": "1"})
    work.push("card 4111-1111")
    with Pipeline(spark, work.drained(), lake, masks=["$.card"]) as pipeline:
        assert sum(step.dropped for step in pipeline.steps()) == 1
    work.push('[{"card": "4111-1111"}]', '{"card": {"number": "4111-1111"}}', content=Content.JSON)
    run(spark, work, lake, masks=["$[*].card"])
    assert stored_masks(Lake(lake.folder)[BRONZE]).paths == ("$.card", "$[*].card")
    bodies = [row["body"] for row in rows_of(lake, BRONZE) if row["kind"] == "pushed"]
    assert bodies == [b'{"card":"***","n":1}', None, b'[{"card":"***"}]', b'{"card":"***"}']
    assert texts_in(lake.folder, "4111") == []


def test_masks_of_one_queue_leave_others_alone() -> None:
    masks = Masks(("q:$.card",))
    rows = [
        dict.fromkeys(BRONZE.schema.names)
        | {"kind": "pushed", "queue": queue, "content": "json", "body": b'{"card":1}'}
        for queue in ("q", "r")
    ]
    [batch] = Masker(masks).mask(iter([pa.RecordBatch.from_pylist(rows, BRONZE.schema)]))
    assert batch["body"].to_pylist() == [b'{"card":"***"}', b'{"card":1}']


@pytest.mark.parametrize("mask", ["card", "$", "$.a[0]", ":$.a", "$..a", "$.a b"])
def test_an_invalid_mask_is_refused_before_anything_is_read(mask: str) -> None:
    with pytest.raises(InvalidInput, match="invalid mask"):
        parse_mask(mask)
