"""Recipes for the commands of the state machine. Each is built twice: for the store and for the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.model import Delivery, PushItem, QueueOptions, State

QUEUES = ["flat", "ns/a/x", "ns/a/y", "ns/b/z"]
OPTIONS = QueueOptions(lease_ms=10, max_attempts=2, backoff_ms=4, backoff_max_ms=12, dedupe_ms=10)


# Every lease ever granted, as a pair: the store's and the model's.
Leases = list[tuple[Delivery, Delivery]]


class Recipe(Protocol):
    """Builds the same command for the store and for the model, except for lease tokens."""

    def make(self, leases: Leases, *, for_store: bool) -> c.Command[Any]: ...


queue_names = st.sampled_from(["flat"] * 4 + ["ns/a/x"] * 3 + QUEUES)
queue_or_dlq = st.one_of(queue_names, queue_names.map(lambda name: name + ".dlq"))
short_ms = st.sampled_from([1, 3, 5, 10])
messages = st.lists(
    st.builds(
        PushItem,
        payload=st.just(b"x"),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        delay_ms=st.sampled_from([None, None, None, 0, 3, 10]),
        ttl_ms=st.sampled_from([None, None, None, 3, 12]),
        key=st.sampled_from([None] * 6 + ["a", "b"]),
        headers=st.sampled_from([None, None, {"h": "1"}]),
    ),
    min_size=1,
    max_size=4,
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "lease_ms": short_ms,
        "max_attempts": st.sampled_from([1, 1, 2, 3]),
        "backoff": st.sampled_from(["fixed", "exponential"]),
        "backoff_ms": st.sampled_from([0, 4]),
        "max_in_flight": st.sampled_from([None, None, 1, 2]),
        "delay_ms": st.sampled_from([0, 0, 0, 5]),
        "window_ms": st.sampled_from([0, 0, 0, 5]),
        "ttl_ms": st.sampled_from([None, None, 8]),
        "priority": st.integers(-1, 1),
        "max_size": st.sampled_from([None, None, 6]),
        "dlq": st.sampled_from([True, True, False]),
        "archive_ms": st.sampled_from([0, 8, None]),
        "dedupe_ms": st.sampled_from([0, 10, 1000]),
    },
)


@dataclass(frozen=True)
class FixedCommand:
    """A command that is identical for the store and the model."""

    verb: Callable[..., c.Command[Any]]
    fields: dict[str, Any]

    def make(self, leases: Leases, *, for_store: bool) -> c.Command[Any]:
        return self.verb(**self.fields)


@dataclass(frozen=True)
class Settle:
    """Settles leases, chosen by how recent they are, with right or wrong tokens."""

    verb: Callable[..., c.Command[Any]]
    picks: list[tuple[int, str]]
    wrong_queue: bool
    item: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def make(self, leases: Leases, *, for_store: bool) -> c.Command[Any]:
        if not leases:
            return self.verb(queue="flat", items=[c.SettleItem(99_999, None, **self.item)], **self.fields)
        recent = leases[::-1]
        queue = recent[self.picks[0][0] % len(recent)][0].queue
        of_queue = [each for each in recent if each[0].queue == queue]
        items = []
        for number, which in self.picks:
            leased, other = of_queue[number % len(of_queue)], recent[(number + 1) * 3 % len(recent)]
            tokens = {"right": leased[not for_store].token, "foreign": other[not for_store].token, "any": None}
            items.append(c.SettleItem(leased[0].id, tokens.get(which, "nonsense"), **self.item))
        return self.verb(queue="ns/b/z" if self.wrong_queue else queue, items=items, **self.fields)


@dataclass(frozen=True)
class TransactRecipe:
    """A transaction of several commands."""

    recipes: list[Recipe]

    def make(self, leases: Leases, *, for_store: bool) -> c.Command[Any]:
        return c.Transact(commands=[recipe.make(leases, for_store=for_store) for recipe in self.recipes])


def same(verb: Callable[..., c.Command[Any]], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Recipe]:
    return st.builds(FixedCommand, st.just(verb), st.fixed_dictionaries(fields))


picked = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 0, 1, 2, 3, 4, 6, 9, 15]),
        st.sampled_from(["right"] * 4 + ["any", "foreign", "nonsense"]),
    ),
    min_size=1,
    max_size=4,
)
# The verb, the positions in the batch to settle, and which token to use.
of_batch = st.tuples(
    st.sampled_from([c.Ack, c.Ack, c.Ack, c.Nack, c.Extend, c.Release]),
    st.lists(st.integers(0, 11), min_size=1, max_size=12, unique=True),
    st.sampled_from(["right"] * 6 + ["any", "nonsense"]),
)
rarely = st.sampled_from([False] * 9 + [True])
push = same(c.Push, queue=queue_names, messages=messages, create=st.just(OPTIONS), global_keys=rarely)
lease = st.one_of(
    same(
        c.Lease,
        queue=st.one_of(queue_names, queue_or_dlq),
        limit=st.integers(1, 4),
        lease_ms=st.one_of(st.none(), short_ms),
        worker=st.sampled_from([None, "w"]),
    ),
    same(c.Lease, scope=st.sampled_from(["ns", "ns/a", "ns/b"]), limit=st.integers(1, 5)),
)
take = same(c.Take, queue=queue_names, limit=st.integers(1, 3))
ack = st.builds(Settle, st.just(c.Ack), picked, rarely)
nack = st.builds(
    Settle,
    st.just(c.Nack),
    picked,
    rarely,
    st.fixed_dictionaries(
        {},
        optional={
            "delay_ms": st.sampled_from([0, 3, 10]),
            "error": st.sampled_from(["e", "f"]),
            "traceback": st.sampled_from(["t", "u"]),
            "dead": rarely,
            "discard": rarely,
        },
    ),
)
extend = st.builds(
    Settle,
    st.just(c.Extend),
    picked,
    rarely,
    fields=st.fixed_dictionaries({"lease_ms": st.one_of(st.none(), short_ms)}),
)
release = st.builds(Settle, st.just(c.Release), picked, rarely)
remove = same(c.Remove, queue=queue_or_dlq, ids=st.lists(st.integers(-1, 40), max_size=4))
purge = same(
    c.Purge,
    queue=queue_or_dlq,
    states=st.lists(st.sampled_from(list(State)), unique=True),
    up_to_id=st.one_of(st.none(), st.integers(0, 30)),
)
move = same(
    c.Move,
    queue=queue_names,
    target=queue_names,
    state=st.sampled_from([State.READY, State.SCHEDULED, State.DEAD, State.DEAD]),
    items=st.lists(
        st.builds(
            lambda message_id, priority: c.MoveItem(message_id, PushItem(payload=b"m", priority=priority, delay_ms=0)),
            st.integers(-1, 40),
            st.sampled_from([0, 0, 1]),
        ),
        max_size=8,
        unique_by=lambda item: item.id,
    ),
)
configure = same(c.Configure, queue=queue_names, changes=changes, create=st.just(OPTIONS), exact=rarely)
pause = same(c.Pause, queue=queue_names, paused=st.sampled_from([True, False, False]))
drop = same(c.Drop, queue=queue_names, force=rarely)
sweep = same(c.Sweep)
catch_up = same(c.CatchUp, queue=queue_or_dlq)
anything = st.one_of(push, push, lease, lease, take, ack, nack, extend, release, remove, move, configure, catch_up)
