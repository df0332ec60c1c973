"""Copy the JavaScript client into the package, where the dashboard uses it; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "clients/js/src"
TARGET = ROOT / "src/penstock/server/dashboard/static/client"
SHAPES = "../shapes.d.ts"
"""Types only: what the checks of the dashboard need and no browser asks for."""


def main() -> None:
    wanted = {path.name: path.read_bytes() for path in SOURCE.glob("*.js")}
    wanted[SHAPES] = (SOURCE.parent / "shapes.d.ts").read_bytes()
    there = {path.name: path.read_bytes() for path in TARGET.glob("*.js")}
    if (TARGET / SHAPES).exists():
        there[SHAPES] = (TARGET / SHAPES).read_bytes()
    if wanted == there:
        return
    if "--check" in sys.argv[1:]:
        names = ", ".join(sorted(name for name in wanted | there if wanted.get(name) != there.get(name)))
        sys.exit(f"the dashboard's client is not that of clients/js: {names}; run make sync")
    TARGET.mkdir(exist_ok=True)
    for name in there.keys() - wanted.keys():
        (TARGET / name).unlink()
    for name, content in wanted.items():
        (TARGET / name).write_bytes(content)


if __name__ == "__main__":
    main()
