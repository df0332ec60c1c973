"""Make the synchronous twins in src/penstock/_sync from the asynchronous modules; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "penstock"
CLIENT = (
    "asker",
    "client",
    "joiner",
    "keeper",
    "local",
    "local_streams",
    "message",
    "poller",
    "queue",
    "remote",
    "remote_streams",
    "retry",
    "stream",
    "transaction",
    "worker",
)
MODULES = ("administration.py", "broker.py", *(f"client/{name}.py" for name in CLIENT))

_BRACKETS = r"\[((?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*)\]"
REPLACEMENTS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b(Committer|Wakeups)\b", r"Thread\1"),
    (r"\bpenstock\.(committer|own_connection|wakeups)\b", r"penstock.thread_\1"),
    (r"\bAsync(Iterator|Iterable|Generator)\b", r"\1"),
    (r"from collections\.abc import Awaitable\n", ""),
    (r"\bAwaitable, ", ""),
    (rf"\bAwaitable{_BRACKETS}", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bpenstock\.(administration|broker)\b", r"penstock._sync.\1"),
    (rf"\bpenstock\.client\.({'|'.join(CLIENT)})\b", r"penstock._sync.client.\1"),
    (r"\bpenstock\.client\.tasks\b", "penstock.client.threads"),
    (r"\bpenstock\.client\.connection\b", "penstock.client.thread_connection"),
    (
        r"This is (?:the )?asynchronous.*?unasync\.py\.",
        "Made by tools/unasync.py from the asynchronous twin: change that.",
    ),
)


def to_sync(source: str) -> str:
    for pattern, replacement in REPLACEMENTS:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL)
    return source


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for module in MODULES:
        target = PACKAGE / "_sync" / module
        wanted = to_sync((PACKAGE / module).read_text(encoding="utf-8"))
        if not target.exists() or target.read_text(encoding="utf-8") != wanted:
            stale.append(module)
            if not check:
                target.parent.mkdir(exist_ok=True)
                target.write_text(wanted, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make sync`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
