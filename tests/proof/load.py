"""Overloads servers with more and more clients that push as fast as they can, far beyond saturation.

Goodput must hold, excess requests must get a 429, and every acknowledged message must be there. The last round repeats
this with clients that ignore `Retry-After` and retry immediately.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.serving import Client
from tests.proof.world import WORLDS, World
from tests.robustness.disconnects import is_whole, request

LEVELS = (1, 8, 64, 256, 1_024)
# The maximum of pending commands; the server answers the next one with 429.
WAITING_MAX = 200
BODY = json.dumps({"payload": "x" * 200}).encode()
IMPATIENT_SECONDS = 0.02
GOODPUT_SHARE_MIN = 0.5


@dataclass
class Level:
    clients: int
    seconds: float = 0.0
    impatient: bool = False
    answered: int = 0
    refused: int = 0
    violations: list[str] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def summary(self) -> dict[str, float | str]:
        return {
            "clients": f"{self.clients}, impatient" if self.impatient else self.clients,
            "goodput_per_s": round(self.goodput, 1),
            "refused_429": self.refused,
            "violations": len(self.violations),
            "p50_ms": round(self.percentile(0.5), 1),
            "p99_ms": round(self.percentile(0.99), 1),
        }


@dataclass
class Load:
    store: str
    levels: list[Level]
    violations: list[str]


async def _push_until(level: Level, port: int, end: float) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            begun = time.monotonic()
            writer.write(request("/queues/load/messages", BODY))
            received = bytearray()
            while not is_whole(received):
                part = await reader.read(65_536)
                if not part:
                    raise ConnectionError("the server closed the connection")
                received += part
            status = received.split(b" ", 2)[1]
            if status == b"201":
                level.answered += 1
                level.ms.append((time.monotonic() - begun) * 1000)
            elif status == b"429":
                level.refused += 1
                after = int(received.partition(b"retry-after: ")[2].partition(b"\r\n")[0])
                pause = IMPATIENT_SECONDS if level.impatient else after * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(0.0, min(pause, end - time.monotonic())))
            else:
                level.violations.append(received[:200].decode(errors="replace"))
        writer.close()
    except OSError as error:
        level.violations.append(repr(error))


async def _run_level(level: Level, ports: list[int], seconds: float) -> None:
    begun = time.monotonic()
    pushing = [_push_until(level, ports[n % len(ports)], begun + seconds) for n in range(level.clients)]
    await asyncio.gather(*pushing)
    level.seconds = time.monotonic() - begun


def run(store: str, folder: Path, seconds: float) -> Load:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * LEVELS[-1]), hard), hard))
    world: World = WORLDS[store](folder / "world", random.Random(0), faulty=False, commit_queue_max=WAITING_MAX)
    load = Load(store, [*map(Level, LEVELS), Level(LEVELS[-1], impatient=True)], [])
    try:
        ports = [server.port for server in world.servers]
        with Client("127.0.0.1", ports[0]) as client:
            client.queue("load")
            for level in load.levels:
                asyncio.run(_run_level(level, ports, seconds))
                world.wait_until_healed()
                kept = client.get("/queues/load/stats").json["ready"]
                acknowledged = sum(each.answered for each in load.levels)
                if kept < acknowledged:
                    load.violations.append(f"{acknowledged} messages were acknowledged, but {kept} are in the queue")
                load.violations += level.violations[:3]
    finally:
        world.close()
    load.violations += judge(load.levels)
    return load


def judge(levels: list[Level]) -> list[str]:
    best = max(level.goodput for level in levels)
    violations = []
    for level in [each for each in levels if each.clients == levels[-1].clients]:
        if level.goodput < GOODPUT_SHARE_MIN * best:
            violations.append(f"goodput fell from {best:.0f} to {level.goodput:.0f} messages a second past saturation")
        if not level.refused:
            violations.append(f"none of {level.clients} clients got a 429")
    return violations
