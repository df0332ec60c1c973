"""Stores of every released version are opened and migrated. Stores of a newer version are refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import penstock
from tests.postgres import cluster
from tools.fixtures import SCHEMA

RELEASES = sorted((Path(__file__).parents[1] / "fixtures").iterdir())


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, release: Path, tmp_path: Path) -> str:
    text = (release / f"{request.param}.sql").read_text("utf-8")
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
            connection.executescript(text)
        return f"sqlite:///{tmp_path}/old.db"
    schema = request.getfixturevalue("schema")
    with psycopg.connect(cluster().url, autocommit=True) as connection:
        connection.execute(text.replace(SCHEMA, schema).encode())
    return f"{cluster().url}&schema={schema}"


def test_a_store_of_a_released_version_is_opened_with_all_its_data(url: str) -> None:
    with penstock.connect(url) as client:
        assert [queue.name for queue in client.queues()] == ["emails", "shop/orders/new", "still"]
        emails = client.queue("emails")
        info = emails.info()
        assert (info.ready, info.scheduled, info.dead, info.options.max_attempts) == (2, 1, 1, 1)
        (letter,) = emails.dead_letters()
        assert letter.payload == {"dead": True}
        assert "mailbox full" in repr(letter.errors)
        assert emails.push("again", key="welcome").duplicate
        first, second = emails.lease(5)
        assert (first.payload, first.headers) == ({"waiting": 1}, {"from": "the first version"})
        assert second.payload == b"bytes \x00\xff"
        tree = client.queue("shop/orders/new").info()
        assert (tree.ready + tree.leased, tree.archived) == (2, 1)
        assert client.queue("still").info().paused


def test_an_upgraded_store_keeps_working(url: str) -> None:
    with penstock.connect(url) as client:
        orders = client.queue("shop/orders/new")
        receipt = orders.push({"order": "new"})
        assert receipt.id > 7
        assert client.queue("emails").redrive().moved == 1
        messages = orders.lease(10)
        assert orders.ack_many(messages) == []
    with penstock.connect(url) as client:
        assert client.queue("emails").info().ready == 3


def test_a_database_of_a_newer_version_is_refused(store: str, schema: str) -> None:
    with penstock.connect(store) as client:
        client.create_queue("q")
    with psycopg.connect(cluster().url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO \"{schema}\".migration (version, name, checksum) VALUES (999, 'later', 'x')".encode()
        )
    with pytest.raises(penstock.SchemaTooNew, match=r"version 999.*newer Penstock"):
        penstock.connect(store)


def test_a_process_of_an_older_version_gets_an_error_after_an_upgrade(tmp_path: Path) -> None:
    """An older version cannot see leases stored as ranges, and would lease their messages again."""
    path = tmp_path / "tasks.db"
    with penstock.connect(f"sqlite:///{path}") as client, closing(sqlite3.connect(path)) as older:
        client.create_queue("q")
        with pytest.raises(sqlite3.OperationalError, match="no such table: penstock_lease"):
            older.execute("SELECT * FROM penstock_lease")


def test_a_file_that_a_newer_version_changes_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with penstock.connect(f"sqlite:///{path}") as client:
        queue = client.create_queue("q")
        queue.push_many(["a", "b"])
        with closing(sqlite3.connect(path)) as newer:
            newer.execute("ALTER TABLE penstock_single_lease RENAME TO penstock_other_lease")
        with pytest.raises(penstock.CannotOpen, match="no such table") as caught:
            queue.lease(2)
        assert "newer release" in str(caught.value.hint)
