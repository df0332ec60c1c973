"""A batch groups similar commands, and no command overtakes another one that it must follow."""

from __future__ import annotations

from typing import Any

from penstock.core.commands import Ack, Command, Configure, Lease, Push
from penstock.core.model import PushItem
from penstock.group_commit.batch_order import group_compatible


def push(queue: str, text: str) -> Push:
    return Push(queue=queue, messages=[PushItem(payload=text.encode())])


def sorted_batch(*commands: Command[Any]) -> list[Command[Any]]:
    return list(group_compatible(commands, lambda command: command))


def test_acks_come_before_pushes_and_pushes_before_leases() -> None:
    lease, pushed, ack = Lease(queue="q"), push("q", "a"), Ack(queue="q", items=[])
    assert sorted_batch(lease, pushed, ack) == [ack, pushed, lease]


def test_commands_of_one_kind_and_queue_keep_their_order() -> None:
    pushes = [push("q", text) for text in "abc"]
    others = [push("p", text) for text in "xy"]
    assert sorted_batch(pushes[0], others[0], pushes[1], others[1], pushes[2]) == [*others, *pushes]


def test_no_command_overtakes_one_of_another_kind() -> None:
    configure = Configure(queue="q", changes={})
    before, after = [Lease(queue="q"), push("q", "a")], [Lease(queue="q"), push("q", "b")]
    assert sorted_batch(*before, configure, *after) == [*reversed(before), configure, *reversed(after)]
