"""Injects faults into a world: every kind once in random order, then again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.crash.relay import Relay
from tests.crash.workers import now_ms
from tests.proof.clients import LEASE_MS
from tests.proof.disk import Disk
from tests.proof.history import Recorder
from tests.proof.world import PostgresWorld, Server

HOUR_S = 3_600


@dataclass
class Faults:
    world: Any
    recorder: Recorder
    chance: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    _bag: list[str] = field(default_factory=list)

    def kinds(self) -> list[str]:
        kinds = {**EVERYWHERE, **(ON_POSTGRES if isinstance(self.world, PostgresWorld) else {})}
        return [*kinds, *(WITH_A_DISK if self.world.disk is not None else {})]

    def next(self) -> str:
        """Inject the next fault and return its kind."""
        self._bag = self._bag or self.chance.sample(self.kinds(), len(self.kinds()))
        kind = self._bag.pop()
        self.do(kind)
        return kind

    def do(self, kind: str) -> None:
        (EVERYWHERE | ON_POSTGRES | WITH_A_DISK)[kind](self, kind)
        self.happened[kind] += 1

    @contextmanager
    def noted(self, kind: str, *, loses_leases: bool = False) -> Iterator[None]:
        """Record the fault from before it begins until every server is ready again."""
        fault = self.recorder.fault(kind, loses_leases=loses_leases)
        try:
            yield
            self.world.wait_until_healed()
        finally:
            fault.ended = now_ms()

    def pause(self, *seconds: float) -> None:
        time.sleep(self.chance.choice(seconds))

    def server(self) -> Server:
        return self.chance.choice(self.world.servers)

    def lines(self) -> list[Relay]:
        """Return one random relay in front of a server or the database, or sometimes all of them."""
        lines = [server.line for server in self.world.servers] + getattr(self.world, "lines", [])
        return lines if self.chance.random() < 0.3 else [self.chance.choice(lines)]

    def disk(self) -> Disk:
        assert self.world.disk is not None
        return self.world.disk

    def move_clock(self, ahead_s: int) -> None:
        kind = f"clock {'+' if ahead_s > self.disk().clock_ahead_s else '-'}1 h"
        fault = self.recorder.fault(kind, ahead_s=ahead_s)
        self.disk().move_clock(ahead_s)
        # A thread that read the clock just before it moved may still use the old value.
        time.sleep(0.1)
        fault.ended = now_ms()


def kill(faults: Faults, kind: str) -> None:
    with faults.noted(kind):
        server = faults.server()
        server.kill()
        faults.pause(0, 0.3)
        server.start()


def stop_and_continue(faults: Faults, kind: str) -> None:
    """Pause a server, sometimes for longer than a lease."""
    with faults.noted(kind):
        server = faults.server()
        server.signal(signal.SIGSTOP)
        faults.pause(0.2, 1.0, LEASE_MS / 1000 + 0.5)
        server.signal(signal.SIGCONT)


def rolling_restart(faults: Faults, kind: str) -> None:
    """Stop and restart the servers gracefully, one after the other."""
    with faults.noted(kind):
        for server in faults.world.servers:
            code = server.terminate()
            assert code == 0, f"a server that received SIGTERM exited with {code}"
            server.start()
            faults.world.wait_until_healed()


def cut_network(faults: Faults, kind: str) -> None:
    with faults.noted(kind):
        lines = faults.lines()
        for line in lines:
            line.hold()
        faults.pause(0.05, 0.5)
        for line in lines:
            line.cut()
        faults.pause(0, 0.3)
        for line in lines:
            line.restore()


def slow_network(faults: Faults, kind: str) -> None:
    with faults.noted(kind):
        lines = faults.lines()
        for line in lines:
            line.slow(faults.chance.choice((0.02, 0.2)))
        faults.pause(0.5, 1.5)
        for line in lines:
            line.restore()


def restart_postgres(faults: Faults, kind: str) -> None:
    with faults.noted(kind, loses_leases=True):
        faults.world.restart_database(signal.SIGQUIT)


def kill_postgres(faults: Faults, kind: str) -> None:
    with faults.noted(kind, loses_leases=True):
        faults.world.restart_database(signal.SIGKILL)


def power_cut(faults: Faults, kind: str) -> None:
    with faults.noted(kind, loses_leases=True):
        faults.world.power_cut()


def disk_full(faults: Faults, kind: str) -> None:
    with faults.noted(kind, loses_leases=True):
        faults.disk().set(full=True)
        faults.pause(0.3, 1.0, 2.0)
        faults.disk().heal()


def slow_sync(faults: Faults, kind: str) -> None:
    with faults.noted(kind):
        faults.disk().set(sync_delay_ms=faults.chance.choice((20, 100, 400)))
        faults.pause(0.5, 1.5)
        faults.disk().heal()


def failing_sync(faults: Faults, kind: str) -> None:
    """Let fsyncs fail. PostgreSQL panics at the first failure and recovers from what is on disk."""
    with faults.noted(kind, loses_leases=True):
        faults.disk().set(syncs_to_fail=faults.chance.choice((1, 3)))
        faults.pause(0.5, 1.0)
        faults.disk().heal()


def move_the_clock(faults: Faults, kind: str) -> None:
    """Move the clock by an hour, or back to the real time."""
    faults.move_clock(0 if faults.disk().clock_ahead_s else faults.chance.choice((HOUR_S, -HOUR_S)))
    faults.pause(0.3, 1.0)


EVERYWHERE: dict[str, Callable[[Faults, str], None]] = {
    "SIGKILL": kill,
    "SIGSTOP": stop_and_continue,
    "rolling restart": rolling_restart,
    "network cut": cut_network,
    "network slow": slow_network,
}
ON_POSTGRES: dict[str, Callable[[Faults, str], None]] = {
    "PostgreSQL stopped at once": restart_postgres,
    "PostgreSQL SIGKILL": kill_postgres,
}
WITH_A_DISK: dict[str, Callable[[Faults, str], None]] = {
    "power cut": power_cut,
    "disk full": disk_full,
    "fsync slow": slow_sync,
    "fsync fails": failing_sync,
    "clock moved": move_the_clock,
}
