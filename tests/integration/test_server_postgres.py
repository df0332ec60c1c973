"""The server on PostgreSQL: the same APIs, several servers on one database, and outages."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.sync.client import connect

import penstock
from penstock.config import load_settings
from penstock.errors import InvalidInput, PenstockError
from tests.conformance.support import eventually
from tests.integration.serving import PATIENCE, running
from tests.postgres import Cluster

pytestmark = pytest.mark.timeout(120)


def test_a_push_at_one_server_wakes_a_poll_at_another_server(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store) as one, running(tmp_path, store=store) as two:
        here = penstock.connect(f"http://127.0.0.1:{one.port}")
        queue = here.create_queue("q")
        found: list[object] = []

        def poll() -> None:
            with penstock.connect(f"http://127.0.0.1:{two.port}") as client:
                for message in client.queue("q").lease(wait=60):
                    found.append(message.payload)
                    message.ack()

        waiting = threading.Thread(target=poll)
        waiting.start()
        queue.push("hello")
        waiting.join()
        assert found == ["hello"]
        here.close()


def test_text_that_no_database_can_store_is_refused(store: str, tmp_path: Path) -> None:
    with running(tmp_path, store=store) as server, server.client() as client:
        for path in ("/queues?prefix=a%00b", "/api/v1/analytics/ns/n?after=%00"):
            assert client.get(path).status == 422
    with penstock.connect(store) as straight:
        for look in (straight.queues, straight.streams):
            with pytest.raises(InvalidInput):
                look(prefix="a\0b")


def test_an_unreachable_database_is_reported_and_recovers(tmp_path: Path) -> None:
    own = Cluster()
    try:
        with running(tmp_path, store=own.url) as server:
            client = penstock.connect(f"http://127.0.0.1:{server.port}", retry_for=0)
            queue = client.create_queue("q")
            queue.push("before")
            own.stop()
            with pytest.raises(PenstockError):
                queue.push("lost")
            own.start()

            def is_back() -> bool:
                try:
                    queue.push("after")
                except PenstockError:
                    return False
                return True

            eventually(is_back)
            assert "before" in [message.payload for message in queue.lease(9)]
            client.close()
    finally:
        own.remove()


def test_a_dashboard_opened_during_an_outage_shows_events_after_it(tmp_path: Path) -> None:
    own = Cluster()
    try:
        with running(tmp_path, store=own.url) as server:
            client = penstock.connect(f"http://127.0.0.1:{server.port}", retry_for=0)
            queue = client.create_queue("q")
            own.stop()
            with connect(f"ws://127.0.0.1:{server.port}/ws/dashboard?digest=true") as socket:
                assert json.loads(socket.recv(PATIENCE))["event"] == "history"
                with pytest.raises(PenstockError):
                    queue.push("lost")
                own.start()
                received: list[object] = []

                def has_digest() -> bool:
                    with suppress(PenstockError):
                        queue.push("after")
                    with suppress(TimeoutError):
                        received.append(json.loads(socket.recv(1))["event"])
                    return "digest" in received

                eventually(has_digest)
            client.close()
    finally:
        own.remove()


def test_the_variables_of_the_tree_name_the_database() -> None:
    environ = {"PG_HOST": "db", "PG_USER": "me", "PG_PASSWORD": "a/b@c", "PG_DB": "queues", "DB_POOL_SIZE": "20"}
    settings = load_settings({}, environ)
    assert settings.store == "postgresql://me:a%2Fb%40c@db:5432/queues"
    assert settings.pool_size == 20
    assert load_settings({"store": "sqlite:///x.db"}, environ).store == "sqlite:///x.db"
    assert load_settings({}, {"PG_PORT": "5433"}).store is None
