"""Finds out what happened to a batch whose connection was lost during its commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from penstock.errors import StoreUnreachable
from penstock.postgres.connection import OUTCOME_SECONDS, DatabaseTarget, Pool, translate
from penstock.postgres.pipeline import PipelinedConnection, Statement
from penstock.store.postgres.transaction import MARK_BITS, MARKS_KEPT_MS, PostgresTransaction


class CommitLost(Exception):
    """Raised when the connection was lost between sending a commit and receiving its reply."""

    def __init__(self, tx: PostgresTransaction, outcomes: list[Any], cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.tx = tx
        self.outcomes = outcomes
        self.cause = cause
        # False if a part of the outcomes, such as the ids of new messages, was in the lost reply.
        self.is_complete = not tx.answers_with_commit


def was_committed(lost: CommitLost, pool: Pool, target: DatabaseTarget) -> bool:
    """Reconnect and find out whether the batch was committed; raise an error if that stays unknown."""
    if lost.tx.mark is not None:
        found = _retry(lost, pool, _find_by_mark)
    elif lost.tx.xid is not None:
        found = _retry(lost, pool, _find_by_xid)
    else:
        # An ack can be repeated: one that was committed is recalled by its token.
        found = _retry(lost, pool, lambda *_: False) if lost.tx.parts is not None else None
    if found is None:
        raise translate(psycopg.OperationalError(str(lost.cause)), target, maybe_done=True) from lost.cause
    return found


def _retry(lost: CommitLost, pool: Pool, find: Callable[[CommitLost, PipelinedConnection], bool | None]) -> bool | None:
    deadline = time.monotonic() + OUTCOME_SECONDS
    while time.monotonic() < deadline:
        try:
            with pool.wire() as wire:
                return find(lost, wire)
        except _InProgress:
            pass
        except (StoreUnreachable, psycopg.Error):
            pass
        time.sleep(0.05)
    return None


class _InProgress(Exception):
    """Raised while the lost transaction is still running."""


def _find_by_xid(lost: CommitLost, wire: PipelinedConnection) -> bool | None:
    """Query the status of the transaction.

    After a crash the database may reuse the number of a transaction that had not reached the disk, so a commit found
    after a restart proves nothing.
    """
    try:
        (((status,),),) = wire.run([Statement(lost.tx.context.sql["begin.was_committed"], (lost.tx.xid,))])
    except psycopg.errors.InvalidParameterValue:
        return False  # The number is not yet assigned: the transaction did not survive a crash.
    if status == "aborted":
        return False
    if status != "committed":
        raise _InProgress
    return True if wire.server_start_id == lost.tx.wire.server_start_id else None


def _find_by_mark(lost: CommitLost, wire: PipelinedConnection) -> bool | None:
    """Search for the mark of the batch, and claim it, so that the batch fails if it arrives later."""
    context, mark = lost.tx.context, lost.tx.mark
    assert mark is not None
    move = [] if context.clock is None else [Statement(context.sql["begin.move_clock"], (context.clock(),))]
    ask = [Statement(context.sql[f"begin.{name}"], (mark,)) for name in ("claim_mark", "find_mark")]
    claimed, found, ((now,),) = wire.run([*move, *ask, Statement(context.sql["begin.now"])])[len(move) :]
    if claimed or found[0][0] is None:
        # After a long pause, the mark of a committed batch may have been deleted.
        return None if abs(now - (mark >> MARK_BITS)) > MARKS_KEPT_MS // 2 else False
    if lost.tx.on_numbered is not None:
        lost.tx.on_numbered(found)
        lost.is_complete = True
    return True
