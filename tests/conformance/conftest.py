"""Every promise is held against every store; PostgreSQL joins by one more entry in STORES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.support import Clock, StoreUnderTest

STORES: dict[str, Callable[[Path], StoreUnderTest]] = {
    "sqlite": lambda folder: StoreUnderTest(folder / "penstock.db", persists=True),
    "memory": lambda _: StoreUnderTest(":memory:", persists=False),
}
SHARED = [name for name in STORES if name != "memory"]


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
    """A store that lasts and that others may open."""
    yield from _open(request.param, tmp_path)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    """The clock of the test's store."""
    name = "shared" if "shared" in request.fixturenames else "store"
    under_test: StoreUnderTest = request.getfixturevalue(name)
    return under_test.clock
