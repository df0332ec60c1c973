"""Generates the synchronous twins in `_sync` folders from the asynchronous modules; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "penstock"
BROKER = ("admin", "broker")

_BRACKETS = r"\[((?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*)\]"
REPLACEMENTS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b(Committer|Waiters)\b", r"Thread\1"),
    (r"\bpenstock\.group_commit\.tasks\b", "penstock.group_commit.threads"),
    (r"\b(waiters|caller_transaction|_concurrency|connection)_async\b", r"\1_threads"),
    (r"\bAsync(Iterator|Iterable|Generator)\b", r"\1"),
    (r"from collections\.abc import Awaitable\n", ""),
    (r"\bAwaitable, ", ""),
    (rf"\bAwaitable{_BRACKETS}", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (rf"\bpenstock\.broker\.({'|'.join(BROKER)})\b", r"penstock.broker._sync.\1"),
    (r"\bpenstock\.client\._async\b", "penstock.client._sync"),
)
NOTICE = "# Made by tools/unasync.py from the asynchronous twin: change that.\n"


def twins() -> dict[Path, Path]:
    """Return each asynchronous module with the path of its synchronous twin."""
    broker, client = PACKAGE / "broker", PACKAGE / "client"
    found = {broker / f"{name}.py": broker / "_sync" / f"{name}.py" for name in BROKER}
    return found | {module: client / "_sync" / module.name for module in sorted((client / "_async").glob("*.py"))}


def to_sync(source: str) -> str:
    for pattern, replacement in REPLACEMENTS:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL)
    return NOTICE + source


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for module, target in twins().items():
        wanted = to_sync(module.read_text(encoding="utf-8"))
        if not target.exists() or target.read_text(encoding="utf-8") != wanted:
            stale.append(str(target.relative_to(PACKAGE)))
            if not check:
                target.parent.mkdir(exist_ok=True)
                target.write_text(wanted, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make sync`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
