"""Executes a batch: finds the locks it needs, and joins adjacent commands of one kind into one statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from penstock.core.commands import (
    Ack,
    AddKey,
    Beat,
    CatchUp,
    Command,
    Configure,
    Drop,
    Extend,
    Lease,
    Move,
    Nack,
    Pause,
    Purge,
    Push,
    Redrive,
    Release,
    Remove,
    RemoveKeys,
    SetSecret,
    SettledAll,
    Sweep,
    SwitchJournal,
    Take,
    Transact,
    TransactOutcome,
)
from penstock.core.ids import DLQ_SUFFIX
from penstock.errors import InvariantBroken, PenstockError
from penstock.postgres.pipeline import Statement
from penstock.store.common import require_settled
from penstock.store.postgres import access, lease, push, settle
from penstock.store.postgres.admin import purge, redrive, remove
from penstock.store.postgres.configure import configure, drop, pause
from penstock.store.postgres.journal import switch_journal
from penstock.store.postgres.move import move
from penstock.store.postgres.scope import lease_scope
from penstock.store.postgres.sweep import sweep
from penstock.store.postgres.transaction import ADMIN, LEASE, PUSH, WHOLE, PostgresTransaction, home
from penstock.store.postgres.workers import beat

NEEDS: dict[type[Command[Any]], int] = {
    Push: WHOLE | PUSH,
    Lease: WHOLE | LEASE,
    Take: WHOLE | LEASE,
    CatchUp: WHOLE,
    Ack: 0,
    Nack: WHOLE,
    Extend: 0,
    Release: 0,
    Remove: WHOLE | LEASE,
    Purge: WHOLE | LEASE,
    Move: WHOLE | LEASE,
    Redrive: WHOLE | PUSH,
    Configure: WHOLE | ADMIN,
    Pause: WHOLE | ADMIN,
    Drop: WHOLE | ADMIN | PUSH | LEASE,
    AddKey: ADMIN,
    RemoveKeys: ADMIN,
    SetSecret: ADMIN,
}

JOINED: dict[type[Command[Any]], Callable[[PostgresTransaction, Any], list[Any]]] = {
    Push: push.push_all,
    Ack: settle.ack_all,
    Lease: lease.lease_all,
}
EARLY_STATEMENTS: dict[type[Command[Any]], Callable[[PostgresTransaction, Any], list[Statement]]] = {
    Push: push.early_statements,
    Ack: settle.early_statements,
    Lease: lease.early_statements,
}


def needs_of(commands: Sequence[Command[Any]]) -> dict[str, int]:
    """Return the queues that a batch uses, with the needs of its commands."""
    needs: dict[str, int] = {}
    for queue, kind in {(getattr(command, "queue", None), type(command)) for command in commands}:
        if queue is not None:
            name = home(queue)
            needs[name] = needs.get(name, 0) | NEEDS[kind]
    for command in commands:
        if isinstance(command, Move):
            needs[command.target] = needs.get(command.target, 0) | NEEDS[Push]
        elif isinstance(command, Transact):
            for name, flags in needs_of(command.commands).items():
                needs[name] = needs.get(name, 0) | flags
    return needs


def is_durable(commands: Sequence[Command[Any]]) -> bool:
    return any(command.durable for command in commands)


Run = tuple[type[Command[Any]] | None, list[Command[Any]]]


def runs(commands: Sequence[Command[Any]]) -> list[Run]:
    """Group adjacent commands that can be joined under their kind, and others under None."""

    def kind(command: Command[Any]) -> type[Command[Any]] | None:
        found = type(command)
        if found is Lease:
            queue: str | None = command.queue  # type: ignore[attr-defined]
            return Lease if queue is not None and not queue.endswith(DLQ_SUFFIX) else None
        return found if found in JOINED else None

    return [(found, list(members)) for found, members in groupby(commands, kind)]


def early_statements(tx: PostgresTransaction, first: Run) -> list[Statement]:
    """Return statements of the first run that can go with the first round trip of the transaction."""
    found, members = first
    return EARLY_STATEMENTS[found](tx, members) if found is not None else []


def execute(tx: PostgresTransaction, in_runs: Sequence[Run], *, final: bool = True) -> list[Any]:
    """Return the outcome or error of each command. With `final`, no other runs follow these."""
    outcomes: list[Any] = []
    for number, (found, members) in enumerate(in_runs, 1):
        tx.final = final and number == len(in_runs)
        if found is not None:
            outcomes += JOINED[found](tx, members)
            continue
        for command in members:
            tx.early_rows = []
            try:
                outcomes.append(HANDLERS[type(command)](tx, command))
            except InvariantBroken:
                raise
            except PenstockError as error:
                outcomes.append(error)
    return outcomes


def raise_first_error(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise outcome


def _lease_scope(tx: PostgresTransaction, command: Lease) -> Any:
    if command.scope is not None:
        return lease_scope(tx, command, command.scope)
    return lease.lease_dead(tx, tx.queue(str(command.queue)), command)


def transact(tx: PostgresTransaction, command: Transact) -> TransactOutcome:
    tx.save()
    tx.fenced = True
    try:
        outcomes = []
        # One by one, so that nothing is executed after the first rejected command.
        for each in command.commands:
            found = execute(tx, runs([each]), final=False)
            raise_first_error(found)
            outcomes += found
        for each, outcome in zip(command.commands, outcomes, strict=True):
            if isinstance(outcome, SettledAll):
                require_settled(each, outcome)
    except PenstockError:
        tx.undo()
        raise
    finally:
        tx.fenced = False
    tx.keep()
    return TransactOutcome(outcomes)


HANDLERS: dict[type[Command[Any]], Callable[[PostgresTransaction, Any], Any]] = {
    Lease: _lease_scope,
    Take: lease.take,
    CatchUp: lease.catch_up,
    Nack: settle.nack,
    Extend: settle.extend,
    Release: settle.release,
    Remove: remove,
    Purge: purge,
    Move: move,
    Redrive: redrive,
    Sweep: sweep,
    Configure: configure,
    Pause: pause,
    Drop: drop,
    AddKey: access.add_key,
    RemoveKeys: access.remove_keys,
    SetSecret: access.set_secret,
    Transact: transact,
    SwitchJournal: switch_journal,
    Beat: beat,
}
