"""Profiles the server with py-spy while a load runs."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from lib.scenarios import say
from peers import Peer
from peers.base import close_all

from .cells import texts
from .load import Load, Window

LINES = 20
PER_S = 200
# Functions in which an idle thread waits for work.
WAITING = ("_worker", "Writer._work")
FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*?)(:\d+)?\)$")


async def profile(seconds: int, server: Peer, clients: int) -> list[dict[str, Any]]:
    """Return the functions with the largest share of the samples during cycles of single messages."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if not program:
        say("  no profile: py-spy is not installed")
        return []
    await server.fresh()
    await server.create("profile")
    users = await server.connect("profile", clients)
    load = Load(users, "cycle", texts(1)).run(Window(seconds + 2.0, 0.5), server)
    loading = asyncio.create_task(load)
    try:
        await asyncio.sleep(1.0)
        found = await _record(program, seconds, server)
        await loading
    finally:
        loading.cancel()
        await close_all(users)
    return found


async def _record(program: str, seconds: int, server: Peer) -> list[dict[str, Any]]:
    out = server.root / "profile.txt"
    command = [program, "record", "--format", "raw", "--rate", str(PER_S), "--duration", str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--full-filenames",
        "--output",
        str(out),
        "--pid",
        str(server.children[0].pid),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await process.communicate()
    if process.returncode or not out.exists():
        say(f"  no profile: {output.decode(errors='replace').strip()[-200:]}")
        return []
    return shares(out.read_text())


def shares(text: str) -> list[dict[str, Any]]:
    """Return the share of samples by innermost Python function, including the C code that it calls."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        found = FRAME.match(stack.rsplit(";", 1)[-1])
        if found and found["function"] not in WAITING:
            counts[(found["function"], short_path(found["file"]))] += int(count)
    total = sum(counts.values())
    return [
        {"function": function, "file": file, "share": round(count / total, 4)}
        for (function, file), count in counts.most_common(LINES)
    ]


def short_path(path: str) -> str:
    for mark in ("site-packages/", "/src/"):
        if mark in path:
            return path.rsplit(mark, 1)[1]
    return "/".join(Path(path).parts[-2:])
