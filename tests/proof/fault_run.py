"""Runs clients of every API while it injects faults, and checks the history."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import penstock
from tests.crash.workers import now_ms
from tests.proof.checker import DRAIN, Verdict, check
from tests.proof.clients import KINDS, LEASE_MS, PLACES, Client, Consumer, HttpClient, Writer, prepare
from tests.proof.faults import HOUR_S, Faults
from tests.proof.history import Delivered, History, Op, Recorder
from tests.proof.world import WORLDS, World

JOIN_SECONDS_MAX = 90.0
DRAIN_SECONDS_MAX = 20.0
LEFT_AT_ONCE = 1_000


@dataclass
class FaultRun:
    """The history of one set of servers, and its verdict."""

    store: str
    seed: int
    history: History
    verdict: Verdict
    happened: Counter[str]
    seconds: float
    answered: list[tuple[float, float]] = field(default_factory=list)
    """For each second since the start, the number of successful calls."""


def run(store: str, seed: int, folder: Path, enough: Callable[[Faults], bool]) -> FaultRun:
    """Inject faults until `enough` returns True."""
    chance = random.Random(seed)
    world: World = WORLDS[store](folder / "world", chance)
    recorder = Recorder(History(store, seed, LEASE_MS, dict(PLACES)))
    started = time.monotonic()
    try:
        prepare(world.servers[0].url)
        faults = Faults(world, recorder, chance)
        stop = threading.Event()
        clients = start_clients(world, recorder, chance, stop)
        while not enough(faults):
            time.sleep(chance.uniform(0.01, 0.1) if chance.random() < 0.2 else chance.uniform(0.3, 0.8))
            with (folder / "faults").open("a") as log:
                log.write(f"{time.monotonic() - started:.1f} s  {faults.next()}\n")
        world.wait_until_healed()
        verdict = settle(world, faults, clients, stop)
    finally:
        recorder.history.save(folder / "history.json")
        world.close()
    fault_run = FaultRun(store, seed, recorder.history, verdict, faults.happened, time.monotonic() - started)
    fault_run.answered = _answered(recorder.history)
    return fault_run


def start_clients(world: World, recorder: Recorder, chance: random.Random, stop: threading.Event) -> list[Client]:
    kinds: list[tuple[type[Client], str]] = [
        (kind, server.url) for server in world.servers for kind in (*KINDS, Writer, Consumer)
    ]
    if world.direct_url is not None:
        kinds += [(Writer, world.direct_url), (Consumer, world.direct_url)]
    clients = [
        kind(f"{kind.__name__}{number}", url, recorder, chance.getrandbits(32), stop)
        for number, (kind, url) in enumerate(kinds)
    ]
    for client in clients:
        client.start()
    return clients


def settle(world: World, faults: Faults, clients: list[Client], stop: threading.Event) -> Verdict:
    """Stop the clients, drain every place, and check the history and the store."""
    recorder = faults.recorder
    stop.set()
    hanging = []
    for client in clients:
        client.join(JOIN_SECONDS_MAX)
        if client.is_alive():
            hanging.append(client.name)
    if world.disk is not None:
        # This expires all leases, including those that were granted while the clock was ahead.
        faults.move_clock(3 * HOUR_S)
    else:
        time.sleep(2 * LEASE_MS / 1000)
    _drain(world.servers[0].url, recorder)
    verdict = check(recorder.history)
    for name in hanging:
        verdict.accounting.add_violation("put", "unexpected", f"{name} hangs")
    for client in clients:
        if client.broken is not None:
            verdict.accounting.add_violation("put", "unexpected", f"{client.name} ended: {client.broken!r}")
    for server in world.servers:
        server.terminate()
    try:
        world.check()
    except AssertionError as error:
        verdict.accounting.add_violation("put", "unexpected", f"counters or journal differ from a recount: {error}")
    return verdict


def _drain(url: str, recorder: Recorder) -> None:
    """Take everything that is left through the same APIs."""
    with penstock.connect(url, connect_timeout=30, retry_for=30) as client:
        for place, kind in PLACES.items():
            if kind in ("queue", "fifo"):
                _drain_queue(client.queue(place), recorder, place)
        stream, at = client.stream("clicks"), 0
        while True:
            op = recorder.begin(Op(DRAIN, "read", "clicks", 0))
            page = stream.read(at, LEFT_AT_ONCE)
            recorder.done(op, delivered=[Delivered(record.offset, record.data) for record in page])
            if not page:
                break
            at = page[-1].offset + 1
    inbox = HttpClient(DRAIN, url, recorder, 0, threading.Event())
    while True:
        op = recorder.begin(Op(DRAIN, "take", "box", 0, limit=LEFT_AT_ONCE))
        taken = inbox.ask("GET", f"/v1/messages?limit={LEFT_AT_ONCE}")
        recorder.done(op, delivered=[Delivered(each["id"], each["body"]) for each in taken])
        if not taken:
            break
    inbox.close()


def _drain_queue(queue: penstock.Queue, recorder: Recorder, place: str) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while True:
        op = recorder.begin(Op(DRAIN, "lease", place, 0))
        messages = queue.lease(LEFT_AT_ONCE, lease=60, wait=0)
        # The tree API identifies a message by its UUID, which the client may choose.
        ids = [m.uuid if "/" in place else m.id for m in messages]
        delivered = [Delivered(id_, m.payload, m.token, m.attempts) for id_, m in zip(ids, messages, strict=True)]
        recorder.done(op, delivered=delivered)
        if not messages:
            info = queue.info()
            # A message cannot be leased while another server's sweep moves it.
            if info.ready + info.scheduled + info.leased == 0 or time.monotonic() > deadline:
                return
            time.sleep(0.01)
            continue
        ack = recorder.begin(Op(DRAIN, "ack", place, 0, ids=ids, tokens=[m.token for m in messages]))
        lost = {m.id for m in queue.ack_many(messages)}
        ack.stale = [id_ for id_, m in zip(ids, messages, strict=True) if m.id in lost]
        recorder.done(ack)


def _answered(history: History) -> list[tuple[float, float]]:
    begun = min((op.began for op in history.ops), default=now_ms())
    counts = Counter((op.ended - begun) // 1000 for op in history.ops if op.outcome == "ok" and op.client != DRAIN)
    return [(float(second), float(counts[second])) for second in range(max(counts, default=0) + 1)]
