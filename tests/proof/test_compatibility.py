"""A used default server's store can be migrated, and several versions can share a store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.core.commands import Sweep
from penstock.core.model import system_clock
from penstock.store.sqlite import SqliteStore
from tests.integration.serving import process
from tests.proof import compatibility
from tests.proof.compatibility import Version, later_version, new_store

pytestmark = pytest.mark.timeout(280)
KINDS = ["sqlite", "postgresql"]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_store_of_a_used_default_server_migrates_in_both_directions(kind: str, kill: bool, tmp_path: Path) -> None:
    assert compatibility.move_used_store(kind, tmp_path, 0, kill=kill)["messages"] > 0


def test_a_used_store_does_not_change_while_a_migration_could_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/penstock.db"
    compatibility.use_server(url, tmp_path, 0, kill=False)
    before = compatibility.contents(url)
    assert before["queue orders"]
    with closing(SqliteStore(tmp_path / "penstock.db", clock=lambda: system_clock() + 600_000)) as store:
        store.apply([Sweep()])
    compatibility.expect_same(before, compatibility.contents(url))


@pytest.mark.parametrize("kind", KINDS)
def test_the_previous_version_and_this_one_share_a_store_or_the_older_is_refused(kind: str, tmp_path: Path) -> None:
    assert compatibility.use_with_previous(kind, tmp_path, count=20)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return later_version(tmp_path_factory.mktemp("later"))


USE_NEW_OPTIONS = """
with penstock.connect(sys.argv[1]) as client:
    client.create_queue("q", sparkle=7, max_attempts=9).push("from the later version")
    client.create_stream("s", sparkle=8).append("a record")
"""
READ_NEW_OPTIONS = """
with penstock.connect(sys.argv[1]) as client:
    queue, stream = client.queue("q").info().options, client.stream("s").info().options
    print(json.dumps([queue.sparkle, queue.lease_ms, queue.max_attempts, stream.sparkle, stream.retention_ms]))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_of_a_later_version_is_ignored_and_kept(kind: str, later: Version, tmp_path: Path) -> None:
    with new_store(kind, tmp_path) as url:
        later.run(f"{USE_NEW_OPTIONS}\nprint(0)", url)
        with penstock.connect(url) as client:
            queue, stream = client.queue("q"), client.stream("s")
            assert queue.info().options.max_attempts == 9
            (message,) = queue.lease()
            message.ack()
            queue.configure(lease_ms=5_000)
            stream.configure(retention_ms=86_400_000)
            assert [record.data for record in stream.read()] == ["a record"]
        assert later.run(READ_NEW_OPTIONS, url) == [7, 5_000, 9, 8, 86_400_000]


def test_a_client_works_with_a_server_of_a_later_version(later: Version, tmp_path: Path) -> None:
    with process(tmp_path, env=later.environment) as server:
        url = f"http://127.0.0.1:{server.port}"
        later.run(f"{USE_NEW_OPTIONS}\nprint(0)", url)
        with penstock.connect(url) as client:
            assert client.queue("q").info().options.max_attempts == 9
            assert client.stream("s").info().name == "s"
            assert [each.name for each in client.queues()] == ["q"]
            (message,) = client.queue("q").lease()
            message.ack()


def _execute(url: str, statement: str, table: str = "queue") -> list[tuple[str, ...]]:
    """Run SQL on a table of a store that no client uses."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            return file.execute(statement.format(f"penstock_{table}")).fetchall()
    base, _, schema = url.partition("&schema=")
    with psycopg.connect(base, autocommit=True) as database:
        cursor = database.execute(statement.format(f'"{schema}".{table}').encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("kind", KINDS)
def test_only_options_that_differ_from_the_defaults_are_stored(kind: str, tmp_path: Path) -> None:
    with new_store(kind, tmp_path) as url:
        with penstock.connect(url) as client:
            client.create_queue("q", max_attempts=9).configure(max_attempts=5, lease_ms=60_000)
        assert _execute(url, "SELECT options FROM {}") == [('{"lease_ms":60000}',)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_only_a_later_version_understands_is_a_typed_error(kind: str, tmp_path: Path) -> None:
    with new_store(kind, tmp_path) as url:
        with penstock.connect(url) as client:
            client.create_queue("q")
        _execute(url, """UPDATE {} SET options = '{{"backoff":"lunar"}}'""")
        with penstock.connect(url) as client, pytest.raises(penstock.SchemaTooNew, match=r"lunar.*upgrade"):
            client.queue("q").info()
