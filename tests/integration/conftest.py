"""Servers shared by the tests of a module. Each test creates its own queues."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client_support import Proxy, Sdk, proxy
from tests.integration.serving import Client, Running, running
from tests.postgres import cluster, drop_schema, new_schema


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def serving_from(store: str, folder: Path, **settings: Any) -> Iterator[Running]:
    """Run a server on a `sqlite` file, or on a new `postgres` schema."""
    if store == "sqlite":
        with running(folder, **settings) as server:
            yield server
        return
    schema = new_schema()
    try:
        with running(folder, store=f"{cluster().url}&schema={schema}", **settings) as server:
            yield server
    finally:
        drop_schema(schema)


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with server.client() as client:
        yield client


_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A unique queue name."""
    return f"q{next(_numbers)}"


@pytest.fixture
def queue(client: Client, name: str) -> str:
    """The path of a new queue."""
    return client.queue(name)


Fresh = Callable[..., Running]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Fresh]:
    """Starts a server for this test alone, with the given settings."""
    opened = []

    def start(**settings: object) -> Running:
        manager = running(tmp_path, **settings)
        opened.append(manager)
        return manager.__enter__()

    yield start
    for manager in reversed(opened):
        manager.__exit__(None, None, None)


@pytest.fixture
def schema() -> Iterator[str]:
    """A new PostgreSQL schema."""
    schema = new_schema()
    yield schema
    drop_schema(schema)


@pytest.fixture
def store(schema: str) -> str:
    """The URL of a new PostgreSQL schema."""
    return f"{cluster().url}&schema={schema}"


@pytest.fixture(params=["async", "sync"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return Sdk(request.param)


@pytest.fixture(params=["sqlite", "postgres", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of each kind that the SDK connects to."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgres":
        return str(request.getfixturevalue("store"))
    return f"http://127.0.0.1:{request.getfixturevalue('server').port}"


@pytest.fixture
def between(server: Running) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with proxy(server.port) as between:
        yield between
