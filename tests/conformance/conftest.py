"""Runs every conformance test against every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import Clock, StoreUnderTest

STORES: dict[str, Callable[[Path], StoreUnderTest]] = {
    "sqlite": lambda folder: StoreUnderTest(folder / "penstock.db", persists=True),
    "memory": lambda _: StoreUnderTest(":memory:", persists=False),
    "postgres": lambda _: PostgresUnderTest(),
    "postgres-no-journal": lambda _: PostgresUnderTest(journal=False),
}
SHARED = ["sqlite", "postgres", "postgres-no-journal"]
JOURNALLED = ["sqlite", "postgres"]
FILES = ["sqlite", "memory"]
STORE_FIXTURES = {"store", "shared", "journalled", "in_sqlite", "on_file", "on_server", "unjournalled"}


def _open(name: str, folder: Path) -> Iterator[StoreUnderTest]:
    under_test = STORES[name](folder)
    try:
        yield under_test
        under_test.check()
    finally:
        under_test.close_all()


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    yield from _open(request.param, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    """A persistent store that other processes can open too."""
    yield from _open(request.param, tmp_path)


@pytest.fixture(params=JOURNALLED)
def journalled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    """A shared store that keeps a journal."""
    yield from _open(request.param, tmp_path)


@pytest.fixture(params=FILES)
def in_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    """A SQLite store, in memory or in a file, for tests that make no sense on a database server."""
    yield from _open(request.param, tmp_path)


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[StoreUnderTest]:
    """A store in a SQLite file."""
    yield from _open("sqlite", tmp_path)


@pytest.fixture
def on_server() -> Iterator[PostgresUnderTest]:
    """A store in a PostgreSQL database, with a journal."""
    under_test = PostgresUnderTest()
    try:
        yield under_test
    finally:
        under_test.close_all()


@pytest.fixture
def unjournalled() -> Iterator[PostgresUnderTest]:
    """A store in a PostgreSQL database, without a journal."""
    under_test = PostgresUnderTest(journal=False)
    try:
        yield under_test
    finally:
        under_test.close_all()


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    """The clock of the store under test."""
    (name,) = STORE_FIXTURES & set(request.fixturenames)
    under_test: StoreUnderTest = request.getfixturevalue(name)
    return under_test.clock
