"""Maps each command to its handler, alone or joined with adjacent commands of its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from penstock.core.commands import (
    Ack,
    AddKey,
    Beat,
    CatchUp,
    CatchUpJournal,
    Command,
    Configure,
    Drop,
    Extend,
    ForgetJournal,
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
from penstock.errors import InvariantBroken, PenstockError
from penstock.store.common import require_settled
from penstock.store.sqlite import access
from penstock.store.sqlite.admin import purge, redrive, remove, sweep
from penstock.store.sqlite.configure import configure, drop, pause
from penstock.store.sqlite.journal import catch_up_journal, forget_journal, switch_journal
from penstock.store.sqlite.lease import catch_up, lease, lease_together, take
from penstock.store.sqlite.move import move
from penstock.store.sqlite.push import push, push_together
from penstock.store.sqlite.settle import ack, ack_together, extend, nack, release
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.workers import beat

Together = Callable[[SqliteTransaction, str, list[Any]], Sequence[Any] | None]


def execute_batch(tx: SqliteTransaction, commands: Sequence[Command[Any]]) -> list[Any]:
    """Return the outcome of each command, or its error if it changed nothing."""
    outcomes: list[Any] = []
    for alike in _groups(commands):
        joined = _execute_joined(tx, alike) if len(alike) > 1 else None
        if joined is not None:
            outcomes += joined
            continue
        for command in alike:
            try:
                outcomes.append(HANDLERS[type(command)](tx, command))
            except InvariantBroken:
                raise
            except PenstockError as error:
                outcomes.append(error)
    return outcomes


def _groups(commands: Sequence[Command[Any]]) -> list[Sequence[Command[Any]]]:
    """Group adjacent commands of one kind for one queue."""
    if len(commands) == 1:
        return [commands]
    return [list(alike) for _, alike in groupby(commands, _kind_and_queue)]


def _kind_and_queue(command: Command[Any]) -> tuple[type[Command[Any]], str | None]:
    return type(command), getattr(command, "queue", None)


def _execute_joined(tx: SqliteTransaction, alike: Sequence[Command[Any]]) -> Sequence[Any] | None:
    kind, queue = _kind_and_queue(alike[0])
    join = TOGETHER.get(kind)
    return join(tx, queue, list(alike)) if join and queue else None


def execute(tx: SqliteTransaction, command: Command[Any]) -> Any:
    return HANDLERS[type(command)](tx, command)


def transact(tx: SqliteTransaction, command: Transact) -> TransactOutcome:
    tx.count()
    mark = tx.mark()
    tx.execute("SAVEPOINT transact")
    tx.fenced = True
    try:
        outcomes = [execute(tx, each) for each in command.commands]
        for each, outcome in zip(command.commands, outcomes, strict=True):
            if isinstance(outcome, SettledAll):
                require_settled(each, outcome)
    except PenstockError:
        tx.execute("ROLLBACK TO transact")
        tx.execute("RELEASE transact")
        tx.roll_back_to(mark)
        raise
    finally:
        tx.fenced = False
    tx.write_counters()
    tx.execute("RELEASE transact")
    return TransactOutcome(outcomes)


HANDLERS: dict[type[Command[Any]], Callable[[SqliteTransaction, Any], Any]] = {
    Push: push,
    Lease: lease,
    Take: take,
    CatchUp: catch_up,
    Ack: ack,
    Nack: nack,
    Extend: extend,
    Release: release,
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
    ForgetJournal: forget_journal,
    CatchUpJournal: catch_up_journal,
    Beat: beat,
}
# Handlers of adjacent commands for one queue; they return None if the commands have to be executed one by one.
TOGETHER: dict[type[Command[Any]], Together] = {Push: push_together, Lease: lease_together, Ack: ack_together}
