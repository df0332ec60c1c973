"""Messages that used up their attempts become dead letters, and can be redriven."""

from __future__ import annotations

import pytest

from penstock.core.commands import Lease, Nack, Pause, RedriveOutcome, SettleItem
from penstock.core.model import ERROR_TEXT_MAX, State
from penstock.errors import InvalidInput
from tests.conformance.support import Clock, StoreUnderTest, ids, texts


def test_a_message_without_attempts_left_is_dead_lettered(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=2)
    (message_id,) = store.push("a")
    store.nack(store.lease_one(), delay_ms=0, error="one")
    clock.advance(1)
    outcome = store.nack(store.lease_one(), error="two")
    assert outcome.states == [State.DEAD]
    dead = store.get("q", message_id)
    assert (dead.state, dead.reason, dead.attempts, dead.finished_at) == ("dead", "nacked", 2, clock.now)
    assert [failure.error for failure in dead.errors] == ["two", "one"]
    assert store.counts() == {"dead": 1}
    assert store.info().totals.dead == 1


def test_an_expired_lease_uses_up_the_last_attempt_too(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.push("a")
    store.lease(lease_ms=5)
    clock.advance(5)
    assert store.lease() == []
    assert (store.get("q", message_id).reason, store.info().totals.lapsed) == ("lapsed", 1)


@pytest.mark.parametrize("reason", ["nacked", "lapsed"])
def test_without_a_dlq_a_message_without_attempts_left_is_discarded(
    store: StoreUnderTest, clock: Clock, reason: str
) -> None:
    store.make(max_attempts=1, dlq=False)
    (message_id,) = store.push("a")
    leased = store.lease_one(lease_ms=5)
    if reason == "nacked":
        assert store.nack(leased).states == [None]
    clock.advance(5)
    store.sweep()
    assert (store.get("q", message_id), store.counts(), store.info().totals.dead) == (None, {}, 1)


def test_a_nack_can_dead_letter_at_once(store: StoreUnderTest) -> None:
    store.make(max_attempts=9)
    (message_id,) = store.push("a")
    assert store.nack(store.lease_one(), error="no such user", dead=True).states == [State.DEAD]
    dead = store.get("q", message_id)
    assert (dead.reason, dead.attempts, [each.error for each in dead.errors]) == ("nacked", 1, ["no such user"])
    assert (store.info().totals.nacked, store.info().totals.dead) == (1, 1)
    assert store.nack(store.lease_one("q.dlq"), dead=True).states == [State.DEAD], "a nacked dead letter stays dead"
    assert store.redrive().moved == 1


def test_a_discarded_message_leaves_no_dead_letter(store: StoreUnderTest) -> None:
    store.make(max_attempts=9)
    kept, dropped, _ = store.push("kept", "dropped", "again")
    one, two, three = store.lease(limit=3)
    outcomes = [store.nack(one, dead=True), store.nack(two, discard=True), store.nack(three, delay_ms=0)]
    assert [outcome.states for outcome in outcomes] == [[State.DEAD], [None], [State.READY]]
    assert (store.get("q", dropped), store.counts()) == (None, {"dead": 1, "ready": 1})
    assert (store.info().totals.nacked, store.info().totals.dead) == (3, 2)
    assert store.nack(store.lease_one("q.dlq"), discard=True).states == [None], (
        "a discarded dead letter leaves none either"
    )
    assert (store.get("q", kept), store.counts()) == (None, {"ready": 1})


def test_a_failure_keeps_its_traceback(store: StoreUnderTest) -> None:
    from penstock.core.model import TRACEBACK_MAX

    store.make(max_attempts=2)
    (message_id,) = store.push("a")
    store.nack(store.lease_one(), delay_ms=0, error="one", traceback="line 1")
    store.nack(store.lease_one(), error="two", traceback="x" * TRACEBACK_MAX)
    found = store.get("q", message_id).errors
    assert [(each.error, each.traceback) for each in found] == [("two", "x" * TRACEBACK_MAX), ("one", "line 1")]
    listed = store.pages(State.DEAD)[0].errors
    assert [each.traceback for each in listed] == [None, None], "pages leave tracebacks out to stay small"


def test_dead_letters_stay_when_the_dlq_is_turned_off(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("a")
    store.make(dlq=False)
    assert texts(store.lease("q.dlq")) == ["a"]


def test_dead_letters_are_listed_newest_first_and_leased_oldest_first(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    for payload in "abc":
        store.bury(payload)
        clock.advance(1)
    assert texts(store.pages(State.DEAD)) == ["c", "b", "a"]
    assert texts(store.peek("q.dlq", limit=9)[0]) == ["c", "b", "a"]
    assert texts(store.lease("q.dlq", limit=2)) == ["a", "b"]
    assert texts(store.pages(State.DEAD)) == ["c"]


def test_acking_a_leased_dead_letter_finishes_it(store: StoreUnderTest) -> None:
    store.make(max_attempts=1, archive_ms=None)
    store.bury("a", "b")
    a, b = store.lease("q.dlq", limit=2)
    assert (a.queue, a.attempts) == ("q.dlq", 1)
    assert store.ack(a) == ["ok"]
    assert store.counts() == {"leased": 1, "archived": 1}
    assert store.get("q", a.id).errors == []
    assert store.ack(b) == ["ok"]


@pytest.mark.parametrize("how", ["nack", "release", "lapse"])
def test_a_leased_dead_letter_is_dead_again_when_not_acked(store: StoreUnderTest, clock: Clock, how: str) -> None:
    store.make(max_attempts=2)
    (message_id,) = store.bury("a")
    before = store.get("q", message_id)
    leased = store.lease_one("q.dlq", lease_ms=10)
    assert store.state(message_id) is State.LEASED
    if how == "nack":
        assert store.nack(leased, error="again").states == [State.DEAD]
    elif how == "release":
        store.release(leased)
    clock.advance(10)
    assert store.lease() == []
    assert store.get("q", message_id) == before
    assert store.counts() == {"dead": 1}


def test_a_dead_letters_lease_may_be_settled_by_either_name(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("a")
    leased = store.lease_one("q.dlq")
    assert store.do(Nack(queue="q", items=[SettleItem(leased.id, leased.token)])).states == [State.DEAD]


def test_pausing_a_queue_does_not_pause_its_dead_letters(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("a")
    store.do(Pause(queue="q"))
    assert len(store.lease("q.dlq")) == 1


def test_a_redriven_message_starts_over_behind_the_others(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    (dead_id,) = store.bury("dead")
    clock.advance(1)
    store.push("waiting")
    clock.advance(1)
    outcome = store.redrive()
    assert (outcome.matched, outcome.moved, outcome.after) == (1, 1, None)
    message = store.get("q", dead_id)
    assert (message.id, message.attempts, message.errors) == (dead_id, 0, [])
    assert (message.first_leased_at, message.reason, message.finished_at) == (None, None, None)
    assert store.counts() == {"ready": 2}
    leased = store.lease(limit=2)
    assert (texts(leased), leased[1].attempts) == (["waiting", "dead"], 1)
    assert store.info().totals.redriven == 1


def test_a_redriven_message_may_die_again(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.bury("a", error="first life")
    store.redrive()
    store.nack(store.lease_one(), error="second life")
    assert [failure.error for failure in store.get("q", message_id).errors] == ["second life"]
    assert store.counts() == {"dead": 1}


def test_a_redrive_moves_only_messages_that_match_its_filters(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    (timeout_id,) = store.bury("a", error="timeout after 3 s")
    (other_id,) = store.bury("b", error="no such user")
    clock.advance(5)
    (young_id,) = store.bury("c", error="timeout after 9 s")
    assert store.redrive(error_contains="timeout", dry_run=True).matched == 2
    assert store.redrive(error_contains="Timeout").matched == 0
    assert store.redrive(error_contains="timeout", died_before=clock.now - 5).moved == 1
    assert store.state(timeout_id) is State.READY
    assert store.redrive(ids=[young_id, 999]).moved == 1
    assert ids(store.pages(State.DEAD)) == [other_id]


def test_a_redrive_by_id_ignores_other_dead_letters(store: StoreUnderTest) -> None:
    first, _, _, _, last = store.bury("a", "b", "c", "d", "e")
    assert store.redrive(ids=[last, last, 0, -1, 1 << 62], limit=2) == RedriveOutcome(1, 1)
    step = store.redrive(ids=[last, first], limit=1)
    assert (step.matched, step.moved) == (1, 1)
    assert store.redrive(ids=[last, first], limit=1, after=step.after) == RedriveOutcome(0, 0)
    assert store.drain() == ["a", "e"]


def test_a_dry_run_moves_nothing(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("a", "b")
    outcome = store.redrive(dry_run=True)
    assert (outcome.matched, outcome.moved, store.counts()) == (2, 0, {"dead": 2})


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_redrive_in_steps_moves_each_dead_letter_once(store: StoreUnderTest, dry_run: bool) -> None:
    store.make(max_attempts=1)
    store.bury(*map(str, range(7)), error="odd")
    after, matched, steps = None, 0, 0
    while steps == 0 or after is not None:
        outcome = store.redrive(limit=3, after=after, dry_run=dry_run)
        after, matched, steps = outcome.after, matched + outcome.matched, steps + 1
    assert (matched, steps) == (7, 3)


@pytest.mark.parametrize("after", ["", "x", "1", ":", "1:x", "1:2:3", "1-2"])
def test_a_redrive_refuses_an_invalid_cursor(store: StoreUnderTest, after: str) -> None:
    store.make()
    with pytest.raises(InvalidInput):
        store.redrive(after=after)


def test_a_leased_dead_letter_is_not_redriven(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    store.bury("a", "b")
    leased = store.lease_one("q.dlq")
    assert store.redrive().moved == 1
    assert store.ack(leased) == ["ok"]


def test_the_ttl_of_a_dead_letter_is_paused(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.push("a", ttl_ms=100)
    clock.advance(30)
    store.nack(store.lease_one())
    clock.advance(10_000)
    store.sweep()
    assert store.state(message_id) is State.DEAD
    store.redrive()
    assert store.get("q", message_id).expires_at == clock.now + 70
    clock.advance(69)
    assert store.release(store.lease_one()) == ["ok"]
    clock.advance(1)
    assert store.lease() == []


def test_a_long_error_is_truncated_before_filters_see_it(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.bury("a", error="e" * ERROR_TEXT_MAX + "beyond")
    assert store.get("q", message_id).errors[0].error == "e" * ERROR_TEXT_MAX
    assert store.redrive(error_contains="beyond").matched == 0


def test_leasing_dead_letters_of_an_unknown_queue_fails(store: StoreUnderTest) -> None:
    outcome = store.apply([Lease(queue="none.dlq")])[0]
    assert outcome.code == "unknown_queue"


def test_a_redriven_message_whose_ttl_ran_out_during_a_lease_does_not_expire(
    store: StoreUnderTest, clock: Clock
) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.push("a", ttl_ms=100)
    leased = store.lease_one()
    clock.advance(200)
    store.nack(leased)
    assert store.redrive().moved == 1
    clock.advance(1)
    assert ids(store.lease()) == [message_id]


def test_errors_of_dead_letters_are_read_newest_first_page_by_page(store: StoreUnderTest, clock: Clock) -> None:
    from penstock.core.error_groups import ERROR_READ_MAX

    store.make(max_attempts=1)
    expected = []
    for number in range(5):
        [message_id] = store.bury(str(number), error=f"{number}: " + "x" * 5_000)
        expected.append(message_id)
        clock.advance(number % 2)
    found, after = [], None
    while True:
        page, after = store.dead_errors("q", contains="3: x", limit=2, after=after)
        found += page
        if after is None:
            break
    assert [letter.id for letter in found] == expected[::-1]
    assert [letter.is_wanted for letter in found] == [False, True, False, False, False]
    assert {len(letter.error) for letter in found} == {ERROR_READ_MAX}
    assert all(letter.is_wanted for letter in store.dead_errors("q")[0])


def test_redrive_by_group_moves_all_similar_errors(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    first = store.bury("a", error="timeout after 12 ms")
    store.bury("b", error="no such user")
    third = store.bury("c", error="timeout after 7 ms")
    assert store.redrive(groups=["timeout after # ms"], dry_run=True).matched == 2
    assert store.redrive(groups=["timeout after # ms"]).moved == 2
    assert ids(store.peek("q", limit=5)[0]) == first + third
    assert store.redrive(groups=[]).matched == 0
