"""A message is found by the id that its producer knows: its uuid or a global key."""

from __future__ import annotations

import pytest

from penstock.core.commands import Drop
from penstock.core.ids import message_uuid
from penstock.core.model import PushItem
from tests.conformance.support import START_MS, StoreUnderTest

KEYED = PushItem(payload=b"x", key="k")


@pytest.mark.parametrize("queue", ["flat", "ns/task/queue"])
@pytest.mark.parametrize("priority", [0, 7])
def test_a_uuid_locates_its_queue_and_id(store: StoreUnderTest, queue: str, priority: int) -> None:
    store.push("other", queue="other")
    [receipt] = store.send(PushItem(payload=b"x", priority=priority), queue=queue)
    assert store.locate([receipt.uuid, receipt.uuid.upper()]) == [(queue, receipt.id)] * 2


def test_only_a_global_key_locates_its_queue_and_id(store: StoreUnderTest) -> None:
    [receipt] = store.send(KEYED, queue="a", global_keys=True)
    store.send(PushItem(payload=b"x", key="own"), queue="a")
    assert store.locate(["own", "k", "nothing"]) == [None, ("a", receipt.id), None]


def test_a_deleted_message_is_not_located(store: StoreUnderTest) -> None:
    [receipt] = store.send(PushItem(payload=b"x"), queue="a")
    store.ack(store.lease_one(queue="a"))
    never = message_uuid(receipt.id + 1, START_MS, store.store_id)
    assert store.locate([receipt.uuid, never, "\x1frequest"]) == [None, None, None]


def test_a_key_of_a_dropped_queue_is_not_located(store: StoreUnderTest) -> None:
    store.send(KEYED, queue="a", global_keys=True)
    store.ack(store.lease_one(queue="a"))
    store.do(Drop(queue="a"))
    assert store.locate(["k"]) == [None]


def test_held_returns_the_uuids_of_unfinished_messages(store: StoreUnderTest) -> None:
    store.make(archive_ms=60_000, max_attempts=1, backoff_ms=0)
    sent = [
        PushItem(payload=b"x", priority=priority, delay_ms=delay) for priority, delay in ((0, 0), (7, 0), (0, 9_000))
    ]
    receipts = store.send(*sent, *[PushItem(payload=b"x")] * 3)
    archived, dead, leased = (store.lease_one() for _ in range(3))
    store.ack(archived)
    store.nack(dead)
    (elsewhere,) = store.send(PushItem(payload=b"x"), queue="other")
    uuids = [receipt.uuid for receipt in receipts]
    strange = [
        elsewhere.uuid,
        message_uuid(leased.id, START_MS - 1, store.store_id),
        message_uuid(0, 0, store.store_id),
        "k",
    ]
    assert store.held("q", [*uuids, *strange]) == set(uuids) - {archived.uuid}
    assert store.held("q", []) == set()
