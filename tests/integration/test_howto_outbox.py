"""Runs docs/howto/outbox.md word for word on a file and on a database."""

from __future__ import annotations

import sys
from pathlib import Path

import penstock
from tests.documentation import ROOT, Walk
from tests.postgres import Cluster, programs

PSQL = f"""#!{sys.executable}
import psycopg, sys
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute(open(sys.argv[-1].removeprefix("--file=")).read())
"""


def test_every_block_of_the_page_runs_and_every_order_has_its_message(tmp_path: Path) -> None:
    folder, database = tmp_path / "empty", Cluster()
    folder.mkdir()
    try:
        page = Walk(ROOT / "docs" / "howto" / "outbox.md", folder, database.url)
        if not (programs() / "psql").exists():
            psql = Path(page.environment["PATH"].partition(":")[0], "psql")
            psql.write_text(PSQL, encoding="utf-8")
            psql.chmod(0o755)
        page.run()
        for url, orders in ((f"sqlite:///{folder}/shop.db", [1, 2, 3]), (database.url, [1, 1, 1, 2])):
            with penstock.connect(url) as client:
                emails = client.queue("emails")
                states = ("ready", "leased", "scheduled")
                found = [each.payload["order"] for state in states for each in emails.peek(10, state=state)]
                assert sorted(found) == orders
    finally:
        database.remove()
