"""Acknowledged operations survive a crash of PostgreSQL whatever the role settings; unsafe settings are reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from penstock.core.commands import Ack, Lease, Push, SettleItem
from penstock.core.model import PushItem
from penstock.log.postgres.streams import PostgresStreams
from penstock.store.postgres import PostgresStore
from tests.conformance.support import eventually, push_command, texts
from tests.integration.command_line import penstock
from tests.integration.serving import process
from tests.postgres import Cluster

pytestmark = pytest.mark.timeout(120)
COUNT = 20
WAL_WRITER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"


@pytest.fixture(scope="module")
def relaxed_cluster() -> Iterator[Cluster]:
    """A cluster whose role has synchronous_commit off, and that hardly writes WAL in the background."""
    found = Cluster(wal_writer_delay="10s", autovacuum="off", bgwriter_lru_maxpages="0")
    try:
        with psycopg.connect(found.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE careless LOGIN SUPERUSER")
            connection.execute("ALTER ROLE careless SET synchronous_commit = off")
        yield found
    finally:
        found.remove()


def url_of(cluster: Cluster) -> str:
    return cluster.url.replace("postgres@", "careless@")


def wal_writer(cluster: Cluster) -> int:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        ((pid,),) = connection.execute(WAL_WRITER.encode()).fetchall()
    return int(pid)


def crash(cluster: Cluster, pid: int) -> None:
    """Kill all processes of the cluster, so that unwritten WAL is lost, and wait for the recovery."""
    os.kill(pid, signal.SIGKILL)

    def recovered() -> bool:
        with suppress(psycopg.Error, ValueError):
            return wal_writer(cluster) != pid
        return False

    eventually(recovered)


@pytest.mark.parametrize("journal", [False, True], ids=["at once", "with a journal"])
def test_acknowledged_commands_survive_a_crash_with_synchronous_commit_off(
    relaxed_cluster: Cluster, journal: bool
) -> None:
    schema = f"crash_{journal}".lower()
    with closing(PostgresStore(url_of(relaxed_cluster), schema=schema, journal=journal)) as store:
        store.apply([push_command("first")])
        writer = wal_writer(relaxed_cluster)
        os.kill(writer, signal.SIGSTOP)
        for number in range(COUNT):
            store.apply([push_command(f"{number}")])
            keyed = PushItem(payload=f"keyed {number}".encode(), key=f"key {number}")
            store.apply([Push(queue="q", messages=[keyed])])
        (leased,) = store.apply([Lease(queue="q", limit=1)])
        items = [SettleItem(message.id, message.token) for message in leased.messages]
        assert store.apply([Ack(queue="q", items=items)])[0].results == ["ok"]
        crash(relaxed_cluster, writer)
    with closing(PostgresStore(url_of(relaxed_cluster), schema=schema)) as store:
        found = texts(store.peek("q", limit=3 * COUNT)[0])
    assert found == [text for number in range(COUNT) for text in (f"{number}", f"keyed {number}")]


def test_an_append_survives_a_crash_with_synchronous_commit_off(relaxed_cluster: Cluster) -> None:
    with closing(PostgresStreams(url_of(relaxed_cluster), schema="streams")) as streams:
        streams.create("s")
        streams.append("s", [b"before"])
        writer = wal_writer(relaxed_cluster)
        os.kill(writer, signal.SIGSTOP)
        for number in range(COUNT):
            streams.append("s", [b"%d" % number])
        crash(relaxed_cluster, writer)
    with closing(PostgresStreams(url_of(relaxed_cluster), schema="streams")) as streams:
        assert streams.next_offset("s") == COUNT + 1


def test_a_push_in_the_callers_transaction_survives_a_crash_after_its_commit(relaxed_cluster: Cluster) -> None:
    with closing(PostgresStore(url_of(relaxed_cluster), schema="own", journal=False)) as store:
        store.apply([push_command("before")])
        writer = wal_writer(relaxed_cluster)
        os.kill(writer, signal.SIGSTOP)
        with psycopg.connect(url_of(relaxed_cluster)) as connection:
            store.push_on(connection, push_command("inside"))
        crash(relaxed_cluster, writer)
    with closing(PostgresStore(url_of(relaxed_cluster), schema="own")) as store:
        assert texts(store.peek("q", limit=9)[0]) == ["before", "inside"]


def test_relaxed_durability_and_stronger_settings_are_left_as_they_are(relaxed_cluster: Cluster) -> None:
    with psycopg.connect(relaxed_cluster.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE careful LOGIN SUPERUSER")
        connection.execute("ALTER ROLE careful SET synchronous_commit = remote_apply")
    for user, durability, expected in (
        ("postgres", "full", "on"),
        ("careless", "full", "on"),
        ("careful", "full", "remote_apply"),
        ("careful", "relaxed", "off"),
    ):
        url = relaxed_cluster.url.replace("postgres@", f"{user}@")
        with closing(PostgresStore(url, schema="levels", durability=durability)) as store, store._connect() as line:
            assert line.execute("SHOW synchronous_commit").fetchone() == (expected,)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_the_banner_and_the_doctor_report_a_database_that_a_crash_can_damage(setting: str, tmp_path: Path) -> None:
    own = Cluster(synced=True, **{setting: "off"})
    try:
        with process(tmp_path, "--store", own.url) as server:
            banner = server.text()
        findings = penstock("doctor", own.url, "--json").json
        assert penstock("doctor", own.url).code == 1
    finally:
        own.remove()
    assert "on disk" not in banner
    assert f"{setting} = off" in banner
    assert [finding["what"] for finding in findings if finding["level"] == "problem"] == ["durability"]


def test_the_banner_and_the_doctor_accept_a_safe_database(tmp_path: Path) -> None:
    own = Cluster(synced=True)
    try:
        with process(tmp_path, "--store", own.url) as server:
            assert "full: every write is fsynced before it is acknowledged" in server.text()
        checked = penstock("doctor", own.url, "--json")
        with psycopg.connect(own.url, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
        result = penstock("doctor", own.url)
    finally:
        own.remove()
    assert {finding["level"] for finding in checked.json} == {"ok"}
    assert result.code == 0
    assert "synchronous_commit is off" in result.out


def test_the_doctor_names_a_database_that_it_cannot_reach() -> None:
    checked = penstock("doctor", "postgresql://nobody@127.0.0.1:1/none", "--json")
    assert checked.code == 1
    assert checked.json[0]["what"] == "postgresql"
