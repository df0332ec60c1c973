"""Commands that run in the caller's own transaction, on the caller's SQLite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.commands import Lease, Push
from penstock.core.model import PushItem
from penstock.errors import InvalidInput, UnknownQueue
from tests.conformance.recount import check_tables
from tests.conformance.support import StoreUnderTest, push_command, texts


@pytest.fixture
def connection(on_file: StoreUnderTest) -> Iterator[sqlite3.Connection]:
    """The caller's own connection."""
    connection = sqlite3.connect(on_file.path)
    connection.execute("CREATE TABLE mine (x)")
    yield connection
    connection.close()


def test_a_push_is_part_of_the_callers_transaction(on_file: StoreUnderTest, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO mine VALUES (1)")
    on_file.apply_on(connection, [push_command("a"), push_command("b", "n/t/x")])
    assert on_file.find_queue("q") is None
    connection.commit()
    on_file.apply_on(connection, [push_command("rolled back")])
    connection.rollback()
    assert on_file.push("c") == [3]
    assert (on_file.drain(), texts(on_file.try_lease(scope="n").messages)) == (["a", "c"], ["b"])
    check_tables(connection)


def test_the_callers_rollback_undoes_a_push_that_opened_the_transaction(
    on_file: StoreUnderTest, connection: sqlite3.Connection
) -> None:
    on_file.make()
    on_file.apply_on(connection, [push_command("a")])
    connection.rollback()
    assert on_file.counts() == {}


def test_a_refused_command_leaves_the_callers_transaction_usable(
    on_file: StoreUnderTest, connection: sqlite3.Connection
) -> None:
    on_file.make()
    connection.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(UnknownQueue):
        on_file.apply_on(connection, [push_command("undone"), Lease(queue="none")])
    on_file.apply_on(connection, [push_command("kept")])
    connection.commit()
    check_tables(connection)
    assert connection.execute("SELECT count(*) FROM mine").fetchone() == (1,)
    on_file.push("next")
    assert on_file.drain() == ["kept", "next"]


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda _cursor, row: {"odd": row}])
def test_the_callers_row_factory_does_no_harm(
    on_file: StoreUnderTest, connection: sqlite3.Connection, factory: Callable[..., object]
) -> None:
    connection.row_factory, connection.text_factory = factory, bytes
    on_file.apply_on(
        connection, [push_command("a"), Push(queue="q", messages=[PushItem(payload=b"b", priority=1, key="k")])]
    )
    (leased,) = on_file.apply_on(connection, [Lease(queue="q", limit=2)])
    connection.commit()
    assert texts(leased.messages) == ["b", "a"]
    assert leased.messages[0].key == "k"
    assert (connection.row_factory, connection.text_factory) == (factory, bytes)


def test_a_connection_to_another_file_is_refused(on_file: StoreUnderTest, tmp_path: Path) -> None:
    for other in (sqlite3.connect(tmp_path / "other.db"), sqlite3.connect(":memory:")):
        with pytest.raises(InvalidInput):
            on_file.apply_on(other, [push_command("a")])
        other.close()
