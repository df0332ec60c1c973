"""Finding a message by what its producer knows of it."""

from __future__ import annotations

import pytest

from penstock.commands import Drop
from penstock.identity import message_uuid
from penstock.model import NewMessage
from tests.conformance.support import START_MS, StoreUnderTest

KEYED = NewMessage(payload=b"x", key="k")


@pytest.mark.parametrize("queue", ["flat", "ns/task/queue"])
@pytest.mark.parametrize("priority", [0, 7])
def test_a_uuid_leads_to_its_queue_and_id(store: StoreUnderTest, queue: str, priority: int) -> None:
    store.push("other", queue="other")
    [receipt] = store.send(NewMessage(payload=b"x", priority=priority), queue=queue)
    assert store.locate([receipt.uuid, receipt.uuid.upper()]) == [(queue, receipt.id)] * 2


def test_a_global_key_leads_to_its_queue_and_id_and_one_of_a_queue_does_not(store: StoreUnderTest) -> None:
    [receipt] = store.send(KEYED, queue="a", global_keys=True)
    store.send(NewMessage(payload=b"x", key="own"), queue="a")
    assert store.locate(["own", "k", "nothing"]) == [None, ("a", receipt.id), None]


def test_what_is_gone_is_not_found(store: StoreUnderTest) -> None:
    [receipt] = store.send(NewMessage(payload=b"x"), queue="a")
    store.ack(store.lease_one(queue="a"))
    never = message_uuid(receipt.id + 1, START_MS, store.salt)
    assert store.locate([receipt.uuid, never, "\x1frequest"]) == [None, None, None]


def test_a_key_of_a_queue_that_is_gone_leads_nowhere(store: StoreUnderTest) -> None:
    store.send(KEYED, queue="a", global_keys=True)
    store.ack(store.lease_one(queue="a"))
    store.do(Drop(queue="a"))
    assert store.locate(["k"]) == [None]
