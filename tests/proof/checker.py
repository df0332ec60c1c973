"""Finds lost, duplicated, unexpected, undone and reordered messages in a history, and the fault behind each redelivery.

- attempted: requested by a client;
- acknowledged: confirmed by a response;
- lost: acknowledged, but gone;
- unexpected: present although it was never requested, or was reported as failed;
- recovered: done although no response confirmed it;
- duplicated: redelivered without a nack, which is allowed only for a reason that the history shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.store.common import CLOCK_SKEW_MS
from tests.crash.accounting import CLOCK_MS, Accounting
from tests.proof.history import Delivered, Fault, History, Op

# The client that empties every place at the end.
DRAIN = "drain"
# Faults after which a live server returns messages to the queue because it could not send the response.
LOSE_ANSWERS = ("network cut", "rolling restart")


@dataclass(eq=False)
class Delivery:
    of: Op
    what: Delivered
    settled: Op | None = None

    @property
    def refused(self) -> bool:
        return self.settled is not None and self.what.id in self.settled.stale

    @property
    def is_acked(self) -> bool:
        settled = self.settled
        return settled is not None and settled.verb == "ack" and settled.outcome == "ok" and not self.refused


@dataclass
class Verdict:
    accounting: Accounting = field(default_factory=Accounting)
    explained: Counter[str] = field(default_factory=Counter)
    """How often each reason explained a redelivery or a changed order."""

    @property
    def violations(self) -> list[str]:
        return self.accounting.violations

    def count(self, row: str, column: str, number: int = 1) -> None:
        self.accounting.rows[row][column] += number

    def explain(self, row: str, reason: str) -> None:
        self.count(row, "duplicated" if row != "order" else "recovered")
        self.explained[reason] += 1


class Faults:
    """Looks up which faults were active at a time, and how far the servers' clocks were ahead."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        jumps = sorted((fault for fault in faults if fault.ahead_s is not None), key=lambda fault: fault.began)
        self._jumps = [(fault.began, fault.ended, (fault.ahead_s or 0) * 1000) for fault in jumps]

    def ahead_ms(self, begin: int, end: int) -> int:
        """Return the smallest clock offset between the two times."""
        at = bisect_right(self._jumps, begin, key=lambda jump: jump[1])
        values = [self._jumps[at - 1][2] if at else 0]
        values += [ahead for began, _, ahead in self._jumps[at:] if began <= end]
        return min(values)

    def latest_ms(self, begin: int, end: int) -> int:
        """Return the latest time that the servers' clocks showed between the two times.

        A lease that expired by then stays expired when the clocks are set back.
        """
        at = bisect_right(self._jumps, begin, key=lambda jump: jump[1])
        ahead = self._jumps[at - 1][2] if at else 0
        latest = begin + ahead
        for began, ended, after in self._jumps[at:]:
            if began > end:
                break
            latest = max(latest, min(ended, end) + ahead)
            ahead = after
        return max(latest, end + ahead)

    def set_back(self, leased: Op, end: int) -> bool:
        """Return True if, before `end`, the clocks were set back so far that a lease of this call counts as expired."""
        return any(
            self.latest_ms(leased.began, min(leased.ended, ended)) - max(began, leased.began) - ahead > CLOCK_SKEW_MS
            for began, ended, ahead in self._jumps
            if ended >= leased.began and began <= end
        )

    def lost_leases(self, begin: int, end: int) -> str | None:
        return next((fault.kind for fault in self._during(begin, end) if fault.loses_leases), None)

    def lose_answers(self, begin: int, end: int) -> bool:
        return any(fault.kind in LOSE_ANSWERS for fault in self._during(begin, end))

    def named(self, begin: int, end: int) -> str:
        kinds = sorted({fault.kind for fault in self._during(begin, end)})
        return f" ({', '.join(kinds)})" if kinds else ""

    def _during(self, begin: int, end: int) -> list[Fault]:
        return [fault for fault in self._faults if fault.began <= end and begin <= (fault.ended or fault.began)]


def check(history: History) -> Verdict:
    verdict, faults = Verdict(), Faults(history.faults)
    by_place: dict[str, list[Op]] = defaultdict(list)
    for op in history.ops:
        by_place[op.place].append(op)
    for place, kind in history.places.items():
        ops = by_place.pop(place, [])
        if kind == "stream":
            _Stream(ops, verdict).check()
        elif kind == "inbox":
            _Inbox(ops, verdict).check()
        else:
            _Queue(ops, verdict, faults, history.lease_ms).check(ordered=kind == "fifo")
    for place in by_place:
        verdict.accounting.add_violation("put", "unexpected", f"{place} is not a place of this history")
    return verdict


class _Place:
    """Checks that every put is found exactly once, and each batch as a whole or not at all."""

    def __init__(self, ops: list[Op], verdict: Verdict) -> None:
        self.ops = ops
        self.verdict = verdict
        self.add_violation = verdict.accounting.add_violation

    def check_puts(self, found: dict[str, set[int | str]], *, may_be_lost: int = 0) -> None:
        """Compare all puts with `found`, the ids under which each payload was seen."""
        puts = [op for op in self.ops if op.verb in ("push", "append")]
        missing: list[str] = []
        for put in puts:
            self.verdict.count("put", "attempted", len(put.payloads))
            seen = [payload for payload in put.payloads if payload in found]
            if put.outcome == "ok":
                self.verdict.count("put", "acknowledged", len(put.payloads))
                missing += [payload for payload in put.payloads if payload not in found]
                for payload, id_ in zip(put.payloads, put.ids, strict=True):
                    found.get(payload, set()).add(id_)
            elif put.outcome == "no" and seen:
                self.add_violation("put", "unexpected", f"reported as not stored, but found: {seen} ({put.error})")
            elif 0 < len(seen) < len(put.payloads) and not may_be_lost:
                self.add_violation("put", "unexpected", f"only part of a batch was stored: {put.payloads}")
            else:
                self.verdict.count("put", "recovered", len(seen))
        if len(missing) > may_be_lost:
            for payload in missing:
                self.add_violation("put", "lost", f"{payload} was never delivered")
        elif missing:
            self.verdict.explained["taken, but the response was lost (at most once)"] += len(missing)
        for payload, ids in found.items():
            if len(ids) > 1:
                self.add_violation("put", "duplicated", f"{payload} is stored as {ids}")
        for payload in found.keys() - {payload for put in puts for payload in put.payloads}:
            self.add_violation("pop", "unexpected", f"{payload} was never put")


class _Queue(_Place):
    def __init__(self, ops: list[Op], verdict: Verdict, faults: Faults, lease_ms: int) -> None:
        super().__init__(ops, verdict)
        self.faults = faults
        self.lease_ms = lease_ms
        self.deliveries: dict[int | str, list[Delivery]] = defaultdict(list)

    def check(self, *, ordered: bool) -> None:
        self._gather()
        found: dict[str, set[int | str]] = defaultdict(set)
        for id_, deliveries in self.deliveries.items():
            for each in deliveries:
                found[each.what.payload].add(id_)
        self.check_puts(dict(found))
        for id_, deliveries in self.deliveries.items():
            self._check_leases(id_, deliveries)
            self._check_end(id_, deliveries)
        if ordered:
            self._check_order()

    def _gather(self) -> None:
        by_token: dict[tuple[int | str, str], Delivery] = {}
        for op in sorted((op for op in self.ops if op.verb == "lease"), key=lambda op: op.ended):
            self.verdict.count("pop", "attempted")
            self.verdict.count("pop", "acknowledged", len(op.delivered))
            for what in op.delivered:
                delivery = Delivery(op, what)
                if (what.id, what.token) in by_token:
                    self.add_violation("pop", "duplicated", f"{what.id} was delivered twice with one token")
                by_token[what.id, what.token] = delivery
                self.deliveries[what.id].append(delivery)
        for deliveries in self.deliveries.values():
            _as_leased(deliveries)
        for op in self.ops:
            if op.verb in ("ack", "nack"):
                for id_, token in zip(op.ids, op.tokens, strict=True):
                    by_token[id_, token].settled = op
                is_ack = op.verb == "ack"
                self.verdict.count("ack", "attempted", len(op.ids) * is_ack)
                self.verdict.count(
                    "ack", "acknowledged", (len(op.ids) - len(op.stale)) * (is_ack and op.outcome == "ok")
                )

    def _check_leases(self, id_: int | str, deliveries: list[Delivery]) -> None:
        for earlier, later in pairwise(deliveries):
            begin, end, settled = earlier.of.began, later.of.ended, earlier.settled
            if settled is not None and settled.verb == "nack" and not earlier.refused and settled.outcome == "ok":
                continue
            held_until = begin + self.faults.ahead_ms(begin, earlier.of.ended) + self.lease_ms - CLOCK_MS
            latest = self.faults.latest_ms(begin, end)
            if settled is not None and settled.verb == "nack" and not earlier.refused:
                self.verdict.explain("pop", f"nacked, but the response was lost{self.faults.named(begin, end)}")
            elif latest >= held_until:
                self.verdict.explain("pop", self._why_lapsed(earlier) + self.faults.named(begin, end))
            elif crash := self.faults.lost_leases(begin, end):
                self.verdict.explain("pop", f"a crash lost its lease ({crash})")
            elif self.faults.set_back(earlier.of, end):
                self.verdict.explain("pop", "leased before the clock was set back")
            else:
                self.add_violation("pop", "duplicated", f"{id_} was leased twice, {held_until - latest} ms too early")

    def _why_lapsed(self, earlier: Delivery) -> str:
        if earlier.settled is None:
            return "held until its lease expired"
        if earlier.refused:
            return "settled after its lease expired"
        return "its ack did not arrive, and its lease expired"

    def _check_end(self, id_: int | str, deliveries: list[Delivery]) -> None:
        acked = [each for each in deliveries if each.is_acked]
        if not acked:
            if any(each.settled is not None and each.settled.verb == "ack" and not each.refused for each in deliveries):
                self.verdict.count("ack", "recovered")
            else:
                self.add_violation("put", "lost", f"{id_} was delivered and is gone without an ack")
            return
        if len(acked) > 1 and not self.faults.lost_leases(acked[0].of.began, acked[-1].of.ended):
            acks = sorted((each.settled for each in acked if each.settled is not None), key=lambda op: op.ended)
            if any(two.began > one.ended for one, two in pairwise(acks)):
                self.add_violation("ack", "duplicated", f"{id_} was acked {len(acked)} times")
            else:
                # A client that retries an ack and finds the message gone cannot know that another client acked it.
                self.verdict.explained["acked by another client while its ack was in flight"] += 1
        first = acked[0].settled
        assert first is not None
        later = deliveries[deliveries.index(acked[0]) + 1 :]
        # After a crash lost a lease, its client may still hold the message while another client acks it.
        if any(
            each.of.began > first.ended
            or (each.of.ended > first.ended and not self.faults.lost_leases(each.of.began, each.of.ended))
            for each in later
        ):
            self.add_violation("ack", "lost", f"{id_} was redelivered after its ack")

    def _check_order(self) -> None:
        """If one push ended before another began, its message must be delivered first."""
        pushes = {p: op for op in self.ops if op.verb == "push" and op.outcome == "ok" for p in op.payloads}
        # A client retries a lease whose response did not arrive, and records only the last attempt.
        lost = [
            op
            for op in self.ops
            if op.verb == "lease" and (op.outcome != "ok" or self.faults.lose_answers(op.began, op.ended))
        ]
        firsts = [each[0] for each in self.deliveries.values() if each[0].what.payload in pushes]
        firsts.sort(key=lambda each: each.of.began)
        by_end = sorted(firsts, key=lambda each: each.of.ended)
        at, latest, last = 0, -1, None
        for each in firsts:
            while by_end[at].of.ended < each.of.began:
                begun = pushes[by_end[at].what.payload].began
                if begun > latest:
                    latest, last = begun, by_end[at]
                at += 1
            push = pushes[each.what.payload]
            if push.ended >= latest:
                continue
            assert last is not None
            # A lost response may have leased the message in its turn. If the server noticed that it could not send the
            # response, it returned the message without counting an attempt.
            under_way = (op for op in lost if op.ended >= push.began and op.began <= each.of.ended)
            if each.what.attempts > 1 or any(under_way):
                self.verdict.explain("order", "delivered in order, but that response was lost")
            else:
                self.add_violation("order", "unexpected", f"{last.what.id} overtook {each.what.id}")


def _as_leased(deliveries: list[Delivery]) -> None:
    """Sort deliveries that are in the order of their responses into the order of their leases.

    The response of a delayed server may arrive after that of another server which leased the message later and counted
    one attempt more.
    """
    for end in range(len(deliveries) - 1, 0, -1):
        for at in range(end):
            one, two = deliveries[at : at + 2]
            at_once = one.of.began <= two.of.ended and two.of.began <= one.of.ended
            if at_once and one.what.attempts > two.what.attempts:
                deliveries[at : at + 2] = two, one


class _Stream(_Place):
    def check(self) -> None:
        at: dict[int | str, str] = {}
        found: dict[str, set[int | str]] = defaultdict(set)
        left = {each.id for op in self.ops if op.client == DRAIN for each in op.delivered}
        for op in self.ops:
            if op.verb == "read":
                self.verdict.count("pop", "attempted")
                self.verdict.count("pop", "acknowledged", len(op.delivered))
            for each in op.delivered:
                found[each.payload].add(each.id)
                if at.setdefault(each.id, each.payload) != each.payload:
                    self.add_violation(
                        "pop", "unexpected", f"offset {each.id} holds {at[each.id]}, but held {each.payload}"
                    )
                if each.id not in left:
                    self.add_violation("pop", "lost", f"offset {each.id} was read, but is gone")
        kept = {payload: ids for payload, ids in found.items() if ids & left}
        self.check_puts(kept)
        self._check_order()

    def _check_order(self) -> None:
        appends = sorted((op for op in self.ops if op.verb == "append" and op.outcome == "ok"), key=lambda op: op.began)
        ended = sorted(appends, key=lambda op: op.ended)
        at, highest = 0, -1
        for op in appends:
            while ended[at].ended < op.began:
                highest = max(highest, *(int(id_) for id_ in ended[at].ids))
                at += 1
            if min(int(id_) for id_ in op.ids) < highest:
                self.add_violation("order", "unexpected", f"{op.ids} was appended after {highest} but precedes it")


class _Inbox(_Place):
    """Checks at-most-once delivery: a message that was taken is never delivered again."""

    def check(self) -> None:
        found: dict[str, set[int | str]] = defaultdict(set)
        lost_answers = 0
        for op in self.ops:
            if op.verb != "take":
                continue
            self.verdict.count("pop", "attempted")
            self.verdict.count("pop", "acknowledged", len(op.delivered))
            lost_answers += op.limit * (op.outcome == "maybe")
            for each in op.delivered:
                if each.payload in found:
                    self.add_violation("pop", "duplicated", f"{each.payload} was taken twice")
                found[each.payload].add(each.id)
        self.check_puts(dict(found), may_be_lost=lost_answers)
