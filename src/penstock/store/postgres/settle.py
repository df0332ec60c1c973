"""Ack, nack, extend and release. A stale token changes nothing.

Adjacent acks in a batch, of any queues, end their leases with one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.core.commands import Ack, Extend, Nack, Release, Settled, SettledAll, SettleItem
from penstock.core.ids import ID_MAX, QUEUE_SHIFT
from penstock.core.latency import SERVICE, TOTAL
from penstock.core.model import State, backoff_ms
from penstock.errors import PenstockError, UnknownQueue
from penstock.journal.events import EventFlag, Kind, encode_detail
from penstock.postgres.pipeline import Rows, Statement, blobs, ints, ints_or_nulls
from penstock.store.common import (
    ACKED,
    NACKED,
    NACKED_INTO,
    RELEASED,
    TOKEN_BYTES,
    check_lease,
    check_tokens,
    nacked_into,
    token_bytes,
)
from penstock.store.postgres import lease_ranges
from penstock.store.postgres.journal import record_acked, record_dead, record_ended
from penstock.store.postgres.lease_ranges import parts_of, take_out
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settled_tokens import find_settled, remember, token_key
from penstock.store.postgres.settlement import (
    EndedLease,
    FailedDelivery,
    dead_letter,
    remember_failures,
    requeue,
    return_to_dead,
    schedule,
)
from penstock.store.postgres.transaction import PostgresTransaction, home

# Queue id, expiry time in the token, message id, token.
Item = tuple[int, int, int, bytes]


def _item(queue_id: int, item: SettleItem) -> Item | None:
    """Return the key of the lease, or None if the token or id cannot be valid."""
    token = b"" if item.token is None else token_bytes(item.token)
    if len(token) != TOKEN_BYTES or not 0 < item.id <= ID_MAX:
        return None
    return queue_id, int.from_bytes(token[:6], "big"), item.id, token


def _columns(items: Sequence[Item]) -> tuple[bytes, bytes, bytes, bytes]:
    queues, untils, ids, tokens = zip(*items, strict=True)
    return ints(queues), ints(untils), ints(ids), blobs(tokens)


def early_statements(tx: PostgresTransaction, commands: Sequence[Ack]) -> list[Statement]:
    """Return the statement that ends the leases, to go with the first round trip, if one is enough for all."""
    ids = [tx.context.ids.get(home(command.queue)) for command in commands]
    if None in ids or not joinable(commands):
        return []
    items = _items(commands, ids)  # type: ignore[arg-type]
    if not items:
        return []
    columns = _columns(items)
    return [
        Statement(tx.context.sql["settle.end"], (*columns, tx.journals)),
        Statement(tx.context.sql["lease_range.find"], columns),
    ]


def joinable(commands: Sequence[Ack]) -> bool:
    """Return True if no message occurs twice and each has its token, so that one statement can end all leases."""
    items = [item for command in commands for item in command.items]
    return len({item.id for item in items}) == len(items) and all(item.token is not None for item in items)


def _items(commands: Sequence[Ack], queue_ids: Sequence[int]) -> list[Item]:
    found = []
    for command, queue_id in zip(commands, queue_ids, strict=True):
        found += [each for item in command.items if (each := _item(queue_id, item)) is not None]
    return found


def ack_all(tx: PostgresTransaction, commands: Sequence[Ack]) -> list[SettledAll | PenstockError]:
    """Execute a run of acks."""
    early, tx.early_rows = tx.early_rows, []
    if tx.parts is not None:
        lease_ranges.acknowledge(tx, {queue.id: queue for queue in tx.touched()}, tx.parts)
        return [SettledAll([Settled.OK] * len(command.items)) for command in commands]
    if not joinable(commands):
        return [_ack_alone(tx, command) for command in commands]
    known = [(command, queue) for command in commands if (queue := tx.find(command.queue)) is not None]
    if not early:
        items = _items([command for command, _ in known], [queue.id for _, queue in known])
        early = _end_or_find(tx, items, tx.journals)
    ended = {lease.id: lease for lease in map(EndedLease._make, early[0])}
    parts = parts_of(early[1])
    queues = {queue.id: queue for _, queue in known}
    gone = [part for part in parts if queues[part.queue_id].options.archive_ms == 0]
    kept = [part for part in parts if queues[part.queue_id].options.archive_ms != 0]
    ended |= {lease.id: lease for lease in take_out(tx, kept)}
    in_ranges = {message_id for part in gone for message_id in part.ids}
    lease_ranges.acknowledge(tx, queues, gone)
    tx.context.recent_leases.forget(item.token or "" for command, _ in known for item in command.items)
    by_queue: dict[int, list[EndedLease]] = {queue.id: [] for _, queue in known}
    missing: list[tuple[PostgresQueue, SettleItem]] = []
    for command, queue in known:
        found_here = [ended[item.id] for item in command.items if item.id in ended]
        for lease in found_here:
            check_lease(queue.id, lease.id, lease.row_key)
        by_queue[queue.id] += found_here
        missing += [(queue, item) for item in command.items if item.id not in ended and item.id not in in_ranges]
    finish(tx, queues, by_queue)
    for queue_id, leases in by_queue.items():
        remember(tx, queue_id, leases, [ACKED] * len(leases))
    _forget_extensions(tx, list(ended.values()))
    before, why = find_settled(tx, missing)
    outcomes: list[SettledAll | PenstockError] = []
    for command in commands:
        found = tx.find(command.queue)
        if found is None:
            outcomes.append(UnknownQueue(command.queue))
            continue
        results = []
        for item in command.items:
            done = item.id in ended or item.id in in_ranges or before.get(token_key(found, item)) == ACKED
            results.append(Settled.OK if done else why[found.id, item.id])
        outcomes.append(SettledAll(results))
    return outcomes


def _ack_alone(tx: PostgresTransaction, command: Ack) -> SettledAll | PenstockError:
    try:
        queue = tx.queue(command.queue)
        check_tokens(queue.name, queue.options, command.items)
    except PenstockError as error:
        return error

    def acknowledge(leases: Sequence[EndedLease], _: Sequence[SettleItem]) -> list[State | None]:
        finish(tx, {queue.id: queue}, {queue.id: leases})
        remember(tx, queue.id, leases, [ACKED] * len(leases))
        return [None] * len(leases)

    return SettledAll(_settle(tx, queue, command.items, acknowledge, lambda how: how == ACKED)[0])


def finish(
    tx: PostgresTransaction, queues: Mapping[int, PostgresQueue], by_queue: Mapping[int, Sequence[EndedLease]]
) -> None:
    """Archive or delete acknowledged messages."""
    everything = [lease for leases in by_queue.values() for lease in leases]
    if not everything:
        return

    def count_totals(rows: Rows) -> None:
        for row_key, pushed_at in rows:
            tx.context.latencies.add(row_key >> QUEUE_SHIFT, TOTAL, (tx.now - pushed_at,))

    gone: list[EndedLease] = []
    kept: list[EndedLease] = []
    for queue_id, leases in by_queue.items():
        queue = queues[queue_id]
        if not leases:
            continue
        if queue.is_journalled:
            record_acked(tx, queue, leases)
        keep = queue.options.archive_ms != 0
        (kept if keep else gone).extend(leases)
        queue.count(leased=-len(leases), n_acked=len(leases), archived=len(leases) if keep else 0)
        tx.context.latencies.add(queue_id, SERVICE, [tx.now - lease.leased_at for lease in leases])
        if queue.options.max_in_flight is not None:
            tx.wakes.add(queue.name)
    if gone:
        tx.write("settle.delete_messages", ints(lease.row_key for lease in gone), then=count_totals, needed=False)
    if kept:
        tx.write("settle.pushed", ints(lease.row_key for lease in kept), then=count_totals, needed=False)
        tx.write(
            "lease.archive",
            tx.now,
            ints(lease.row_key for lease in kept),
            ints(lease.attempts for lease in kept),
            ints_or_nulls([lease.first_leased_at for lease in kept]),
            ints(lease.leased_at for lease in kept),
        )
    failed = [lease.id for lease in everything if lease.attempts > 1 or lease.from_dead]
    if failed:
        tx.write("settle.forget_failures", ints(failed))
    dead = [lease.id for lease in everything if lease.from_dead]
    if dead:
        tx.write("settle.forget_dead", ints(dead))


def _forget_extensions(tx: PostgresTransaction, leases: Sequence[EndedLease]) -> None:
    extended = [lease.id for lease in leases if lease.extended]
    if extended:
        tx.write("settle.forget_extensions", ints(extended))


Act = Callable[[Sequence[EndedLease], Sequence[SettleItem]], list[State | None]]


def _settle(
    tx: PostgresTransaction, queue: PostgresQueue, items: Sequence[SettleItem], act: Act, same: Callable[[int], bool]
) -> tuple[list[Settled], list[State | None]]:
    """End the leases of one command's items and call `act` with them; a repeated id is settled by its first item.

    `same` returns True if a remembered result of a token is the one requested now.
    """
    first: dict[int, int] = {}
    for number, item in _holding(tx, queue, items):
        first.setdefault(item.id, number)
    ended = {lease.id: lease for lease in _end(tx, queue, [items[number] for number in first.values()])}
    done = {number: items[number] for message_id, number in first.items() if message_id in ended}
    new_states = act([ended[item.id] for item in done.values()], list(done.values()))
    states = dict(zip(done, new_states, strict=True))
    _forget_extensions(tx, list(ended.values()))
    results, before = _results(tx, queue, items, done, same)
    found = [
        NACKED_INTO[before[number] - NACKED] if before.get(number, 0) >= NACKED else states.get(number)
        for number in range(len(items))
    ]
    return results, found


def _results(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    items: Sequence[SettleItem],
    done: dict[int, SettleItem],
    same: Callable[[int], bool] = lambda _: False,
) -> tuple[list[Settled], dict[int, int]]:
    """Return the result of each item, and how earlier requests settled items by number.

    `done` has the items settled now by number. An item before the one that settled its message is stale, unless its
    token settled the message earlier.
    """
    recalled, why = find_settled(tx, [(queue, item) for number, item in enumerate(items) if number not in done])
    done_by = {item.id: number for number, item in reversed(done.items())}
    results: list[Settled] = []
    before: dict[int, int] = {}
    for number, item in enumerate(items):
        how = recalled.get(token_key(queue, item))
        if number in done:
            results.append(Settled.OK)
        elif how is not None and same(how):
            before[number] = how
            results.append(Settled.OK)
        elif number < done_by.get(item.id, 0):
            results.append(Settled.STALE)
        else:
            results.append(why[queue.id, item.id])
    return results, before


def _holding(
    tx: PostgresTransaction, queue: PostgresQueue, items: Sequence[SettleItem]
) -> Iterable[tuple[int, SettleItem]]:
    """Return the items that may hold a lease; for a message given several times, those with its current token."""
    ids = {item.id for item in items}
    if len(ids) == len(items):
        return enumerate(items)
    current: dict[int, bytes] = dict(
        tx.fetch("settle.current", queue.id, ints(each for each in ids if 0 < each <= ID_MAX))
    )
    return [
        (number, item)
        for number, item in enumerate(items)
        if item.id in current and (item.token is None or token_bytes(item.token) == current[item.id])
    ]


def _find_items(tx: PostgresTransaction, queue: PostgresQueue, items: Sequence[SettleItem]) -> list[Item]:
    """Return the key of each lease, of the current one if no token is given."""
    found = [each for item in items if (each := _item(queue.id, item)) is not None]
    any_token = [item.id for item in items if item.token is None and 0 < item.id <= ID_MAX]
    if any_token:
        for message_id, token in tx.fetch("settle.current", queue.id, ints(any_token)):
            found.append((queue.id, int.from_bytes(token[:6], "big"), message_id, token))
    return found


def _end(tx: PostgresTransaction, queue: PostgresQueue, items: Sequence[SettleItem]) -> list[EndedLease]:
    found = _find_items(tx, queue, items)
    single, in_ranges = _end_or_find(tx, found, queue.is_journalled)
    ended = [*map(EndedLease._make, single), *take_out(tx, parts_of(in_ranges))]
    tx.context.recent_leases.forget(item.token or "" for item in items)
    for lease in ended:
        check_lease(queue.id, lease.id, lease.row_key)
    return ended


def _end_or_find(tx: PostgresTransaction, items: Sequence[Item], journals: bool) -> list[Rows]:
    """End single leases, and find those in ranges, which are ended later."""
    if not items:
        return [[], []]
    columns = _columns(items)
    return tx.fetch_all(("settle.end", *columns, journals), ("lease_range.find", *columns))


def nack(tx: PostgresTransaction, command: Nack) -> SettledAll:
    queue = tx.queue(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    tx.wakes.add(queue.name)

    def back_off(leases: Sequence[EndedLease], items: Sequence[SettleItem]) -> list[State | None]:
        states = _back_off(tx, queue, leases, items)
        remember(tx, queue.id, leases, [nacked_into(state) for state in states])
        return states

    return SettledAll(*_settle(tx, queue, command.items, back_off, lambda how: how >= NACKED))


def _back_off(
    tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease], items: Sequence[SettleItem]
) -> list[State | None]:
    options = queue.options
    states: list[State | None] = []
    dead: list[FailedDelivery] = []
    done: list[EndedLease] = []
    used_up: list[FailedDelivery] = []
    discarded: list[FailedDelivery] = []
    again: list[FailedDelivery] = []
    later: list[tuple[EndedLease, int]] = []
    at_once: list[EndedLease] = []
    for lease, item in zip(leases, items, strict=True):
        failed = FailedDelivery(lease, item.error or "", item.traceback)
        if lease.from_dead:
            if item.discard:
                done.append(lease)
            else:
                dead.append(failed)
            states.append(None if item.discard else State.DEAD)
        elif item.discard:
            discarded.append(failed)
            states.append(None)
        elif item.dead or lease.attempts >= options.max_attempts:
            used_up.append(failed)
            states.append(State.DEAD if options.dlq else None)
        else:
            again.append(failed)
            delay_ms = backoff_ms(options, lease.id, lease.attempts) if item.delay_ms is None else item.delay_ms
            if delay_ms:
                later.append((lease, tx.now + delay_ms))
            else:
                at_once.append(lease)
            states.append(State.SCHEDULED if delay_ms else State.READY)
    if queue.is_journalled:
        _record_nacked(tx, queue, dead, used_up, discarded, again, dict(later))
    finish(tx, {queue.id: queue}, {queue.id: done})
    return_to_dead(tx, queue, [each.lease for each in dead])
    dead_letter(tx, queue, used_up, "nacked")
    dead_letter(tx, queue, discarded, "nacked", discard=True)
    remember_failures(tx, again)
    schedule(tx, queue, [lease for lease, _ in later], [at for _, at in later])
    if at_once:
        behind = max(tx.now, queue.newest_at)
        tx.write("settle.move", ints(lease.row_key for lease in at_once), ints([behind] * len(at_once)))
        requeue(tx, queue, at_once)
    nacked = len(leases) - len(done)
    if nacked:
        queue.count(leased=-nacked, n_nacked=nacked - len(dead))
    return states


def _record_nacked(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    dead: Sequence[FailedDelivery],
    used_up: Sequence[FailedDelivery],
    discarded: Sequence[FailedDelivery],
    again: Sequence[FailedDelivery],
    later: Mapping[EndedLease, int],
) -> None:
    errors = [encode_detail(error=each.error or None) for each in dead]
    released = [each.lease for each in dead]
    record_ended(
        tx, queue, Kind.RELEASED, released, marks=EventFlag.DEAD_LETTER, details=errors if any(errors) else None
    )
    at_once = max(tx.now, queue.newest_at)
    nacked = [*used_up, *discarded, *again]
    leases = [each.lease for each in nacked]
    untils = [0] * (len(used_up) + len(discarded)) + [later.get(each.lease, at_once) for each in again]
    details = [encode_detail(error=each.error, traceback=each.traceback) for each in nacked]
    record_ended(tx, queue, Kind.NACKED, leases, untils=untils, details=details)
    record_dead(tx, queue, used_up, "nacked")
    record_dead(tx, queue, discarded, "nacked", discard=True)


def extend(tx: PostgresTransaction, command: Extend) -> SettledAll:
    queue = tx.queue(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    tx.wakes.add(queue.name)
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    holding = dict(_holding(tx, queue, command.items))
    found = _find_items(tx, queue, list({item.id: item for item in holding.values()}.values()))
    rows: Rows = []
    if found:
        columns = _columns(found)
        rows, in_ranges = tx.fetch_all(
            ("settle.extend", *columns, until, queue.is_journalled), ("lease_range.find", *columns)
        )
        rows += lease_ranges.extend(tx, parts_of(in_ranges), until)
        tx.context.recent_leases.forget(item.token or "" for item in command.items)
    extended = {message_id for message_id, _ in rows}
    if queue.is_journalled and rows:
        events = [(message_id, pushed_at, 0, 0, until, 0, 0, 0) for message_id, pushed_at in rows]
        tx.journal.note(Kind.EXTENDED, queue, events)
    if extended:
        tx.write("settle.note_extensions", ints(extended), until, tx.now)
    results, _ = _results(tx, queue, command.items, {n: item for n, item in holding.items() if item.id in extended})
    queue.lease_expiry_at = min(queue.lease_expiry_at, until)
    return SettledAll(results, leased_until=until)


def release(tx: PostgresTransaction, command: Release) -> SettledAll:
    queue = tx.queue(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    tx.wakes.add(queue.name)

    def release_undelivered(leases: Sequence[EndedLease], _: Sequence[SettleItem]) -> list[State | None]:
        dead = [lease for lease in leases if lease.from_dead]
        record_ended(tx, queue, Kind.RELEASED, dead, marks=EventFlag.DEAD_LETTER)
        record_ended(tx, queue, Kind.RELEASED, [lease for lease in leases if not lease.from_dead])
        return_to_dead(tx, queue, dead)
        undelivered = [
            lease._replace(
                attempts=lease.attempts - 1, first_leased_at=lease.first_leased_at if lease.attempts > 1 else None
            )
            for lease in leases
            if not lease.from_dead
        ]
        requeue(tx, queue, undelivered)
        remember(tx, queue.id, leases, [RELEASED] * len(leases))
        if leases:
            queue.count(leased=-len(leases))
        return [None] * len(leases)

    return SettledAll(_settle(tx, queue, command.items, release_undelivered, lambda how: how == RELEASED)[0])
