"""Writes the generated pages of docs/reference, or reports the stale ones (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference import calls, command_line, dependencies, python, tables
from tools.reference.server import describe_server

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
NOTE = "<!-- Generated from the code by `make docs`. Do not edit. -->\n"


def pages() -> dict[str, str]:
    described = describe_server()
    return {
        "cli.md": command_line.page(),
        "dependencies.md": dependencies.page(),
        "errors.md": python.errors(),
        "events.md": tables.journal_events(),
        "http.md": calls.page(described),
        "lake.md": tables.lake(),
        "metrics.md": tables.metrics(described.metrics),
        "options.md": tables.options(),
        "python.md": python.page(),
        "settings.md": tables.settings(),
    }


def main() -> int:
    check = "--check" in sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    wanted = {name: NOTE + text.strip() + "\n" for name, text in pages().items()}
    generated = {path.name for path in FOLDER.glob("*.md") if path.read_text(encoding="utf-8").startswith(NOTE)}
    stale = generated - wanted.keys()
    for name, text in wanted.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.add(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"stale: docs/reference/{', '.join(sorted(stale))}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
