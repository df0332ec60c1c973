"""Runs docs/howto/back-up.md word for word on both stores."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import penstock
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.postgres import Cluster, programs

HOWTO = (Path(__file__).parents[2] / "docs" / "howto" / "back-up.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", HOWTO, re.DOTALL)
BACKUP, RESTORE, DUMP, UNDUMP = BLOCKS


def run(script: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def push(url: str, payload: str) -> int:
    """Push to a queue and append to a stream."""
    with penstock.connect(url) as client:
        client.create_stream("s", exist_ok=True).append(payload)
        return client.create_queue("q", exist_ok=True).push(payload).id


def payloads(url: str) -> list[object]:
    with penstock.connect(url) as client:
        records = [record.data for record in client.stream("s").read()]
        assert records == [message.payload for message in client.queue("q").peek(10)]
        return records


def test_a_file_is_restored_unchanged(tmp_path: Path) -> None:
    (tmp_path / "penstock-data").mkdir()
    url = f"sqlite:///{tmp_path}/penstock-data/penstock.db"
    path = f"{Path(PENSTOCK).parent}:/usr/bin:/bin"
    push(url, "before")
    run(BACKUP, tmp_path, PATH=path)
    push(url, "after")
    run(RESTORE, tmp_path, PATH=path)
    assert payloads(url) == ["before"]


def test_a_database_is_restored_unchanged(tmp_path: Path) -> None:
    folder = programs()
    if not all((folder / name).exists() for name in ("pg_dump", "pg_restore", "psql")):
        pytest.skip("this PostgreSQL has no client programs")
    own = Cluster()
    try:
        first = push(own.url, "before")
        run(DUMP, tmp_path, PATH=f"{folder}:/usr/bin:/bin", STORE=own.url)
        push(own.url, "after")
        run(UNDUMP, tmp_path, PATH=f"{folder}:/usr/bin:/bin", STORE=own.url)
        assert payloads(own.url) == ["before"]
        assert push(own.url, "later") > first
    finally:
        own.remove()
