"""Writes stores of this version as SQL, so that tests of later versions can open them: `python -m tools.fixtures`.

The files are tests/fixtures/<version>/sqlite.sql and postgres.sql. Run it once for each released version.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import penstock
from tests.postgres import Cluster

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
SCHEMA = "a_schema_to_be_named"
TEN_YEARS = 3600 * 24 * 3650


def fill(url: str) -> None:
    """Create messages in every state that does not end by itself."""
    with penstock.connect(url) as client:
        emails = client.create_queue("emails", max_attempts=1, dedupe_ms=TEN_YEARS * 1000)
        emails.push({"dead": True})
        emails.lease()[0].nack("mailbox full")
        emails.push({"waiting": 1}, key="welcome", priority=3, headers={"from": "the first version"})
        emails.push(b"bytes \x00\xff")
        emails.push("later", delay=TEN_YEARS)
        tree = client.create_queue("shop/orders/new", archive_ms=None, lease_ms=1_000)
        tree.push_many([{"order": number} for number in range(3)])
        tree.lease()[0].ack()
        tree.lease()
        client.create_queue("still").pause()


def sqlite_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fixture.db"
        fill(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def postgres_text() -> str:
    cluster = Cluster()
    try:
        fill(f"{cluster.url}&schema={SCHEMA}")
        words = ["pg_dump", "--inserts", "--no-owner", "--no-acl", f"--schema={SCHEMA}", cluster.url]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    finally:
        cluster.remove()
    session = re.compile(r"--|\\|SET (?!check_function_bodies)|SELECT pg_catalog.set_config")
    return "".join(f"{line}\n" for line in text.splitlines() if line and not session.match(line))


def main() -> int:
    folder = FOLDER / penstock.__version__
    if folder.exists():
        sys.exit(f"{folder} exists already; the fixtures of a released version must not change")
    texts = {"sqlite.sql": sqlite_text(), "postgres.sql": postgres_text()}
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
