"""What the journal tells of whole queues: with what they enter it, leave it and are removed."""

from __future__ import annotations

from typing import Any

from penstock.commands import Drop
from tests.conformance.postgres_support import events_of
from tests.conformance.support import StoreUnderTest
from tests.conformance.test_admin import EVERY_STATE, fill

HELD = {"waiting": 4, "leased": 2, "dead": 1}


def told(store: StoreUnderTest) -> list[dict[str, Any]]:
    """Of queues, but for options."""
    found = [event.details for event in events_of(store) if event.kind == "queue"]
    return [details for details in found if details["what"] not in ("created", "changed")]


def test_a_queue_tells_what_it_holds_as_it_leaves_the_journal_and_as_it_comes_back(
    journalled: StoreUnderTest,
) -> None:
    fill(journalled)
    journalled.make(journal="meta")
    journalled.make(journal="off")
    journalled.push("untold", "untold too")
    journalled.make(journal="off", lease_ms=9)
    journalled.make(journal="full")
    more = {**HELD, "waiting": HELD["waiting"] + 2}
    assert told(journalled) == [{"what": "left", **HELD}, {"what": "entered", **more}]


def test_a_queue_that_is_removed_tells_what_it_held_if_the_journal_told_of_it(journalled: StoreUnderTest) -> None:
    fill(journalled)
    fill(journalled, "untold")
    journalled.make("untold", journal="off")
    for queue in ("q", "untold"):
        journalled.do(Drop(queue=queue, force=True))
    held = sum(EVERY_STATE.values())
    assert told(journalled)[1:] == [{"what": "removed", "held": held, **HELD}, {"what": "removed", "held": held}]
