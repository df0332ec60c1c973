"""Builds large queues once per run and shares them between the scenarios."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .clock import payloads
from .systems import Penstock, System

LONG_S = 86_400
MOST_PER_CALL = 10_000


class Backlog:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.built: dict[str, Path] = {}

    def waiting(self, system: type[System], count: int) -> Path:
        """Return the folder of a queue with a backlog of `count` messages."""
        return self._once(f"{system.key}-{count}", lambda folder: _push(system, folder, count))

    def crowded(self, count: int, beside: int) -> Path:
        """Return the folder of a Penstock queue with `count` ready, and `beside` each delayed, leased and dead."""
        source = self.waiting(Penstock, count)
        return self._once(f"crowded-{count}-{beside}", lambda folder: _crowd(source, folder, count, beside))

    def _once(self, name: str, build: Callable[[Path], None]) -> Path:
        if name not in self.built:
            print(f"building {name}", file=sys.stderr, flush=True)
            folder = self.root / name
            folder.mkdir()
            build(folder)
            self.built[name] = folder
        return self.built[name]


def _push(system: type[System], folder: Path, count: int) -> None:
    handle = system(folder, "relaxed")
    step = MOST_PER_CALL if system is Penstock else 1_000
    batch = payloads(step)
    try:
        for start in range(0, count, step):
            handle.push(batch[: count - start])
    finally:
        handle.close()


def _crowd(source: Path, folder: Path, count: int, beside: int) -> None:
    """Add delayed, leased and dead messages. The latter two come from the front of the queue, so twice as many are
    pushed to its end."""
    from penstock import LiteQueue

    shutil.copytree(source, folder, dirs_exist_ok=True)
    # Without retries, the first nack makes a message dead; the first push stores this setting.
    queue = LiteQueue(str(folder / "queue.db"), durability="relaxed", max_retries=0)
    batch = payloads(MOST_PER_CALL)
    try:
        for start in range(0, beside, MOST_PER_CALL):
            part = batch[: beside - start]
            for delay in (0, 0, LONG_S):
                queue.put_many(part, delay=delay)
            dying = queue.pop_many(len(part))
            queue.nack_many(dying, error="boom")
            leased = queue.pop_many(len(part), timeout=LONG_S)
            if len(dying) != len(part) or len(leased) != len(part):
                raise RuntimeError(f"popped {len(dying)} and {len(leased)} of {len(part)}")
        if queue.qsize() != count + beside:
            raise RuntimeError(f"{queue.qsize():,} are ready or delayed, not {count + beside:,}")
    finally:
        queue.close()
