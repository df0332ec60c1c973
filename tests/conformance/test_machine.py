"""A Hypothesis state machine runs each store beside the model and reports the first difference."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core import commands as c
from penstock.core.model import PushItem, State
from penstock.errors import PenstockError
from penstock.store.interface import Store
from penstock.store.sqlite import SqliteStore
from tests.conformance import recipes as r
from tests.conformance.model import Model, without_tokens
from tests.conformance.postgres_support import Tables, check_journal, open_store
from tests.conformance.recount import check_tables, kept_keys, last_id
from tests.conformance.support import Clock
from tests.postgres import cluster, drop_schema, new_schema

# Number of random examples for a long run. By default a few fixed examples run.
EXAMPLES = os.environ.get("PENSTOCK_EXAMPLES")
pytestmark = pytest.mark.timeout(900 if EXAMPLES is None else 0)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.abandoned: list[Store] = []
        self.prepare()
        self.stores = [self.open(), self.open()]
        self.turn = 0
        self.model = Model(self.clock, self.stores[0].store_id, gaps=self.gaps)
        self.leases: r.Leases = []
        self.db = self.look_inside()

    # True if a rolled-back transaction uses up ids.
    gaps = False
    busy_exactly = True

    def prepare(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-")
        self.path = Path(self.folder.name) / "penstock.db"

    def open(self) -> Store:
        return SqliteStore(self.path, clock=self.clock, durability="relaxed")

    def look_inside(self) -> Any:
        return sqlite3.connect(self.path)

    def last_id(self) -> int:
        return last_id(self.db)

    def teardown(self) -> None:
        self.db.close()
        for store in (*self.stores, *self.abandoned):
            store.close()
        self.clean_up()

    def clean_up(self) -> None:
        self.folder.cleanup()

    @initialize(options=st.lists(st.one_of(st.just({}), r.changes), min_size=len(r.QUEUES), max_size=len(r.QUEUES)))
    def make_queues(self, options: list[dict[str, Any]]) -> None:
        for name, chosen in zip(r.QUEUES, options, strict=True):
            self.run(r.FixedCommand(c.Configure, {"queue": name, "changes": chosen, "create": r.OPTIONS}))

    def run(self, *recipes: r.Recipe) -> None:
        found = self.stores[self.turn].apply([recipe.make(self.leases, for_store=True) for recipe in recipes])
        expected = self.model.apply([recipe.make(self.leases, for_store=False) for recipe in recipes])
        self.compare(found, expected)

    def compare(self, found: list[Any], expected: list[Any]) -> None:
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected, strict=True):
            if isinstance(got, PenstockError) or isinstance(wanted, PenstockError):
                assert type(got) is type(wanted), (got, wanted)
            elif isinstance(wanted, c.TransactOutcome):
                self.compare(got.outcomes, wanted.outcomes)
            elif isinstance(wanted, c.Leased):
                self.compare_leased(got, wanted)
            elif isinstance(wanted, c.Swept):
                self.compare_wake(got.wake_at, wanted.wake_at)
                assert sorted(got.queues) == sorted(wanted.queues)
                same = {"wake_at": None, "queues": []}
                assert msgspec.structs.replace(got, **same) == msgspec.structs.replace(wanted, **same)
            else:
                assert got == wanted, (got, wanted)

    def compare_leased(self, got: c.Leased, wanted: c.Leased) -> None:
        assert without_tokens(got.messages) == without_tokens(wanted.messages)
        assert not got.more
        if wanted.messages:
            assert got.wake_at is None
        else:
            self.compare_wake(got.wake_at, wanted.wake_at)
        for ours, model in zip(got.messages, wanted.messages, strict=True):
            assert len(ours.token) == len(model.token)
            if ours.token:
                assert ours.token not in {old.token for old, _ in self.leases if old.id == ours.id}
                self.leases.append((ours, model))

    def compare_wake(self, got: int | None, exact: int | None) -> None:
        """Check that the store wakes waiting polls at the latest when the model does; earlier is allowed."""
        assert got is None or got > self.clock.now
        if exact is not None:
            assert got is not None
            assert got <= exact

    @rule(recipe=r.push)
    def push(self, recipe: r.Recipe) -> None:
        self.run(recipe)

    @rule(new=r.push, recipe=r.lease)
    def push_and_lease(self, new: r.Recipe, recipe: r.Recipe) -> None:
        self.run(new, recipe)

    @rule(recipe=r.lease, ms=st.sampled_from([0, 0, 1, 3, 5, 10, 12]))
    def lease(self, recipe: r.Recipe, ms: int) -> None:
        self.clock.advance(ms)
        self.run(recipe)

    @rule(recipe=r.take)
    def take(self, recipe: r.Recipe) -> None:
        self.run(recipe)

    @rule(recipe=st.one_of(r.ack, r.nack, r.extend, r.release))
    def settle(self, recipe: r.Recipe) -> None:
        self.run(recipe)

    @rule(new=r.push, lease=r.lease, settle=st.one_of(r.ack, r.nack, r.nack, r.extend, r.release))
    def push_and_work(self, new: r.Recipe, lease: r.Recipe, settle: r.Settle) -> None:
        self.run(new)
        self.work(lease, settle)

    def work(self, lease: r.Recipe, settle: r.Settle) -> None:
        """Lease messages and settle all of them, as a correct consumer does."""
        before = len(self.leases)
        self.run(lease)
        if picks := [(number, "right") for number in range(len(self.leases) - before)]:
            self.run(replace(settle, picks=picks, wrong_queue=False))

    @rule(
        queue=r.queue_names,
        other=r.queue_names,
        turns=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=5),
        settles=st.lists(r.of_batch, max_size=6),
        ms=st.sampled_from([0, 0, 0, 3, 10]),
    )
    def settle_in_parts(
        self, queue: str, other: str, turns: list[tuple[bool, int]], settles: list[Any], ms: int
    ) -> None:
        """Lease a batch and settle parts of it, some twice. Pushes to another queue can leave gaps between the ids."""
        for is_other, count in turns:
            messages = [PushItem(payload=b"x")] * count
            self.run(
                r.FixedCommand(
                    c.Push, {"queue": other if is_other else queue, "messages": messages, "create": r.OPTIONS}
                )
            )
        before = len(self.leases)
        self.run(r.FixedCommand(c.Lease, {"queue": queue, "limit": 12, "worker": "w"}))
        count = len(self.leases) - before
        for verb, numbers, token in settles if count else ():
            self.run(r.Settle(verb, [(number % count, token) for number in numbers], False))
            self.counters_are_right()
        self.clock.advance(ms)
        self.run(r.FixedCommand(c.CatchUp, {"queue": queue}))

    @rule(
        queue=r.queue_names,
        messages=r.messages,
        times=st.integers(1, 3),
        error=st.sampled_from(["e", "f", None]),
        then=st.sampled_from(["", "redrive", "ack"]),
    )
    def fail(self, queue: str, messages: list[PushItem], times: int, error: str | None, then: str) -> None:
        """Lease and nack all messages until they are dead letters, then redrive or ack those."""
        self.run(r.FixedCommand(c.Push, {"queue": queue, "messages": messages, "create": r.OPTIONS}))
        for _ in range(times):
            everything = r.FixedCommand(c.Lease, {"queue": queue, "limit": 20})
            self.work(everything, r.Settle(c.Nack, [], False, {"delay_ms": 0, "error": error}))
        if then == "redrive":
            self.run(r.FixedCommand(c.Redrive, {"queue": queue}))
        elif then == "ack":
            self.work(r.FixedCommand(c.Lease, {"queue": queue + ".dlq", "limit": 2}), r.Settle(c.Ack, [], False))

    @rule(recipe=st.one_of(r.configure, r.configure, r.configure, r.pause))
    def change(self, recipe: r.Recipe) -> None:
        self.run(recipe)

    @rule(recipe=st.one_of(*[r.remove] * 5, *[r.move] * 4, *[r.purge] * 4, r.drop))
    def discard(self, recipe: r.Recipe) -> None:
        self.run(recipe)

    @rule(recipe=st.one_of(r.sweep, r.catch_up), ms=st.sampled_from([0, 1, 5, 12]))
    def move_on(self, recipe: r.Recipe, ms: int) -> None:
        self.clock.advance(ms)
        self.run(recipe)

    @rule(
        recipes=st.lists(
            st.one_of(r.anything, st.builds(r.TransactRecipe, st.lists(r.anything, max_size=3))), max_size=4
        )
    )
    def several(self, recipes: list[r.Recipe]) -> None:
        self.run(*recipes)

    @rule(recipes=st.lists(r.anything, min_size=1, max_size=4))
    def transact(self, recipes: list[r.Recipe]) -> None:
        self.run(r.TransactRecipe(recipes))

    @rule(
        queue=r.queue_or_dlq,
        limit=st.integers(1, 3),
        dry_run=r.rarely,
        wanted=st.one_of(st.none(), st.sets(st.integers(1, 20), max_size=8)),
        error_contains=st.sampled_from([None, None, "e"]),
        ago_ms=st.sampled_from([None, None, 0, 5]),
    )
    def redrive(self, queue: str, ago_ms: int | None, wanted: set[int] | None, **how: Any) -> None:
        died_before = None if ago_ms is None else self.clock.now - ago_ms
        ids = None if wanted is None else sorted(wanted)
        after: str | None = None
        while True:
            command = c.Redrive(queue=queue, ids=ids, died_before=died_before, after=after, **how)
            (found,), (expected,) = self.stores[self.turn].apply([command]), self.model.apply([command])
            self.compare([found], [expected])
            if isinstance(found, PenstockError) or found.after is None:
                break
            after = found.after

    @rule(ms=st.sampled_from([1, 2, 3, 5, 8, 12, 1, 2, 3, 5, 60_000, 3_600_000, 86_400_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(1, 12))
    def clock_steps_back(self, ms: int) -> None:
        self.clock.advance(-ms)

    @rule()
    def other_store(self) -> None:
        self.turn = 1 - self.turn

    @rule()
    def crash(self) -> None:
        self.abandoned.append(self.stores[self.turn])
        self.stores[self.turn] = self.open()

    @invariant()
    def counters_are_right(self) -> None:
        check_tables(self.db, busy_exactly=self.busy_exactly)
        assert self.last_id() == self.model.world.last_id
        assert kept_keys(self.db) == {at: key.id for at, key in self.model.world.keys.items()}

    @invariant()
    def queues_are_the_models(self) -> None:
        store = self.stores[self.turn]
        assert [info.name for info in store.list_queues()] == sorted(self.model.world.queues)
        for name in self.model.world.queues:
            assert store.find_queue(name) == self.model.info(name)
            for state in State:
                page, after = store.peek(name, state=state, limit=1_000)
                assert page == self.model.peek(name, state)
                assert after is None
                for message in page[:2]:
                    assert store.get(name, message.id) == self.model.get(message.id)


class PostgresMachine(Machine):
    gaps = True
    busy_exactly = False
    journal = True

    def prepare(self) -> None:
        self.schema = new_schema()

    def run(self, *recipes: r.Recipe) -> None:
        super().run(*recipes)
        # A store may postpone expirations to a push in the next second. The model expires messages at once.
        commands = [recipe.make(self.leases, for_store=True) for recipe in recipes]
        for queue in sorted({command.queue for command in commands if isinstance(command, c.Push)}):
            super().run(r.FixedCommand(c.CatchUp, {"queue": queue}))

    def open(self) -> Store:
        return open_store(self.schema, self.clock, journal=self.journal)

    def teardown(self) -> None:
        if self.journal:
            check_journal(self.db, cluster().url, self.schema, self.clock)
        super().teardown()

    def look_inside(self) -> Any:
        return Tables(cluster().url, self.schema)

    def last_id(self) -> int:
        found: int = self.db.last_id()
        return found

    def clean_up(self) -> None:
        drop_schema(self.schema)


class UnjournalledMachine(PostgresMachine):
    """A store without a journal, which is the default for a program without a server."""

    journal = False


def settled(examples: int) -> settings:
    return settings(
        derandomize=EXAMPLES is None,
        max_examples=int(EXAMPLES or examples),
        stateful_step_count=40,
        database=None,
        print_blob=True,
        # Shrinking takes minutes, so only long runs that look for a cause do it.
        phases=[Phase.generate] if EXAMPLES is None else list(Phase),
        suppress_health_check=list(HealthCheck),
    )


TestMachine = Machine.TestCase
TestMachine.settings = settled(100)
TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.settings = settled(25)
TestUnjournalledMachine = UnjournalledMachine.TestCase
TestUnjournalledMachine.settings = settled(25)
