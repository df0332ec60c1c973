"""Observability: metrics, the canary, health and traces."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock
from penstock.broker.broker import Broker
from penstock.config import Settings
from penstock.core.model import PushItem, QueueOptions
from penstock.errors import InvariantBroken, StoreBusy
from penstock.server.app import App
from penstock.server.background import CANARY_QUEUE, BackgroundJobs
from penstock.server.telemetry import LogLines, Metrics
from penstock.server.tracing import Tracer
from penstock.store.sqlite import SqliteStore
from tests.integration.conftest import Fresh
from tests.integration.serving import Answer, Client, clean_environment, process
from tests.integration.test_server_http import ask

SOON = 30.0


def samples(answer: Answer) -> dict[str, float]:
    """Return the samples by name and sorted labels."""
    found = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def wait_for(client: Client, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    deadline = time.monotonic() + SOON
    while not condition(found := samples(client.get("/metrics"))):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_metrics_are_complete_and_correct(serve: Fresh) -> None:
    with serve(sweep_ms=50).client() as client:
        queue = client.queue("q", max_attempts=2, backoff_ms=0)
        client.post(f"{queue}/messages", {"messages": [{"payload": n} for n in range(5)]})
        client.post(f"{queue}/messages", {"payload": 9, "delay_ms": 60_000})
        for _ in range(2):
            [message] = client.post(f"{queue}/poll?wait_ms=0").json["messages"]
            client.post(f"{queue}/nack", {"id": message["id"], "token": message["token"], "delay_ms": 0})
        first = message["id"]
        while message["id"] == first or message["attempts"] < 2:
            [message] = client.post(f"{queue}/poll?wait_ms=0").json["messages"]
            client.post(f"{queue}/nack", {"id": message["id"], "token": message["token"], "delay_ms": 0})
        client.post(f"{queue}/poll?wait_ms=0")
        client.get("/nothing")
        found = wait_for(client, lambda found: found["penstock_wal_bytes"] > 0)
        stats = client.get(f"{queue}/stats").json
    for state in ("ready", "scheduled", "leased", "dead"):
        assert found[f'penstock_messages{{queue="q",state="{state}"}}'] == stats[state]
    assert stats["dead"] >= 1
    assert found['penstock_dead_letters_total{queue="q"}'] == stats["totals"]["dead"]
    assert found['penstock_retries_total{queue="q"}'] == stats["totals"]["nacked"] - stats["totals"]["dead"]
    assert found['penstock_events_total{event="pushed",queue="q"}'] == 6
    pushes = 'method="POST",route="/queues/{queue}/messages"'
    assert found[f'penstock_http_requests_total{{{pushes},status="201"}}'] == 2
    assert found[f"penstock_http_request_seconds_count{{{pushes}}}"] == 2
    assert found['penstock_http_requests_total{method="GET",route="unmatched",status="404"}'] == 1
    assert found["penstock_commit_batch_commands_count"] == found["penstock_store_seconds_count"] > 5
    assert found["penstock_store_seconds_sum"] > 0
    assert found["penstock_long_polls_open"] == 0
    assert found["penstock_leases_given_back_total"] == 0
    assert found["penstock_commit_queue"] == 0


def test_the_canary_runs_after_its_first_interval_and_is_measured(serve: Fresh) -> None:
    with serve(canary_ms=1_000, canary_slo_ms=60_000).client() as client:
        queue = client.queue("q")
        assert client.post(f"{queue}/messages", {"payload": 1}).json["id"] == 1
        # A scrape may fall between the two metrics of one round, so wait until both are there.
        found = wait_for(
            client,
            lambda found: (
                min(found['penstock_canary_rounds_total{result="met"}'], found["penstock_canary_seconds_count"]) >= 2
            ),
        )
        assert found['penstock_canary_rounds_total{result="failed"}'] == 0
        topics = [topic["topic"] for topic in client.get("/v1/stats").json["topics"]]
        assert topics == ["q"]
        assert client.get(f"/queues/{CANARY_QUEUE}").json["ready"] == 0


def test_canaries_of_servers_on_one_store_receive_their_own_messages(tmp_path: Path) -> None:
    async def run_canaries() -> list[bool]:
        brokers = [Broker(SqliteStore(tmp_path / "q.db")) for _ in range(2)]
        canaries = [BackgroundJobs(broker, Settings(), Metrics(broker), LogLines()) for broker in brokers]
        rounds = [await asyncio.gather(*(canary._canary_round_trip() for canary in canaries)) for _ in range(3)]
        for broker in brokers:
            await broker.close()
        return [each for both in rounds for each in both]

    assert all(asyncio.run(run_canaries()))


def test_a_canary_that_does_not_return_counts_as_failed(serve: Fresh) -> None:
    server = serve(canary_ms=100)
    with server.client() as client:
        wait_for(client, lambda found: found['penstock_canary_rounds_total{result="met"}'] >= 1)
        client.post(f"/queues/{CANARY_QUEUE}/pause")
        server.app.broker.pressure = "no room"
        wait_for(client, lambda found: found['penstock_canary_rounds_total{result="failed"}'] >= 1)


def test_readiness_names_the_cause(serve: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with server.client() as client:
        assert client.get("/healthz").json == {"status": "ok"}
        assert client.get("/readyz").json == {
            "ready": True,
            "checks": {"store": "ok", "writes": "ok", "disk": "ok", "wal": "ok", "journal": "ok", "logs": "ok"},
        }

        def fail(*_: Any, **__: Any) -> Any:
            raise StoreBusy("locked")

        monkeypatch.setattr(server.app.broker.store, "list_queues", fail)
        assert client.get("/readyz").status == 503
        assert client.get("/readyz").json["checks"]["store"] == "locked"
        health = client.get("/health")
        assert (health.status, health.json["code"]) == (503, "store_busy")
        assert client.get("/healthz").status == 200


def test_a_server_that_cannot_take_pushes_is_not_ready(serve: Fresh) -> None:
    server = serve(busy_ms=600_000)
    with server.client() as client, ThreadPoolExecutor() as pool:
        queue = client.queue("q")
        with closing(sqlite3.connect(server.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            unready = client.get("/readyz")
            assert (unready.status, unready.headers["retry-after"]) == (503, "1")
            assert "another process holds the write lock" in unready.json["checks"]["writes"]
            with server.client() as pusher:
                pushed = pool.submit(pusher.post, f"{queue}/messages", {"payload": 1})
                while not server.app.broker.store._is_locked_out:
                    time.sleep(0.01)
                assert client.get("/readyz").status == 503, "even while a push waits for the lock"
                assert client.get("/healthz").status == 200
                other.execute("ROLLBACK")
                assert pushed.result().status == 201
        assert client.get("/readyz").json["ready"] is True


def test_a_server_that_shares_its_file_with_busy_writers_is_ready(
    serve: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a commit may take long. The server counts as ready as long as commits happen.
    monkeypatch.setattr("penstock.server.api.operations.OBSTACLE_LOOKS", 1_000)
    server = serve()
    over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(server.path, isolation_level=None, timeout=60)) as other:
            other.execute("CREATE TABLE theirs (number INTEGER)")
            while not over.is_set():
                other.execute("BEGIN IMMEDIATE")
                time.sleep(0.02)
                other.execute("INSERT INTO theirs VALUES (1)")
                other.execute("COMMIT")

    def push() -> None:
        with server.client() as client:
            while not over.is_set():
                client.post("/queues/q/messages", {"payload": 1})

    with server.client() as client, ThreadPoolExecutor() as pool:
        client.queue("q")
        work = [pool.submit(write), pool.submit(push)]
        answers = [client.get("/readyz") for _ in range(20)]
        over.set()
        for each in work:
            each.result()
    assert {(answer.status, answer.json["checks"]["writes"]) for answer in answers} == {(200, "ok")}


def test_a_stalled_journal_is_reported_and_the_server_stays_ready(
    serve: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise InvariantBroken("the events are not consecutive")

    monkeypatch.setattr("penstock.journal.drainer.Drain.step", fail)
    server = serve(auth_token="s3cret")
    with server.client() as client, Client("127.0.0.1", server.port) as anyone:
        wait_for(client, lambda found: found["penstock_journal_failing"] == 1)
        answer = client.get("/readyz")
        assert (answer.status, answer.json["ready"]) == (200, True)
        assert "not consecutive" in answer.json["checks"]["journal"]
        assert anyone.get("/readyz").json["checks"]["journal"] == "failed"


def test_metrics_include_ages_disk_process_and_build(serve: Fresh) -> None:
    with serve().client() as client:
        queue = client.queue("q")
        client.queue("empty", max_age_alert_ms=99)
        client.queue("unwatched")
        client.post(f"{queue}/messages", {"payload": "old", "priority": -1})
        first = time.monotonic()
        assert client.ask("PATCH", queue, {"max_age_alert_ms": 99}).status == 200
        while client.get(f"{queue}/stats").json["oldest_age_ms"] < 100:
            time.sleep(0.01)
        client.post(f"{queue}/messages", {"payload": "urgent", "priority": 1})
        assert client.get(f"{queue}/stats").json["age_alert"] is True
        found = samples(client.get("/metrics"))
        waited = time.monotonic() - first
    assert 0.1 <= found['penstock_oldest_age_seconds{queue="q"}'] <= waited + 60
    assert found['penstock_head_age_seconds{queue="q"}'] < found['penstock_oldest_age_seconds{queue="q"}']
    assert found['penstock_oldest_age_seconds{queue="empty"}'] == 0
    assert found['penstock_queue_age_alert{queue="q"}'] == 1
    assert found['penstock_queue_age_alert{queue="empty"}'] == 0
    assert 'penstock_queue_age_alert{queue="unwatched"}' not in found
    assert found["penstock_disk_free_bytes"] > 0
    assert found["process_resident_memory_bytes"] > 0
    assert found["process_open_fds"] > 0
    version = f'version="{penstock.__version__}"'
    [build] = [name for name in found if name.startswith("penstock_build_info")]
    assert version in build
    assert 'store="sqlite"' in build
    assert found["penstock_queues_left_out"] == 0


def test_metrics_report_that_queues_are_left_out(serve: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.telemetry.QUEUES_SHOWN_MAX", 2)
    with serve().client() as client:
        for name in ("a", "b"):
            client.queue(name)
        assert samples(client.get("/metrics"))["penstock_queues_left_out"] == 0
        client.queue("c")
        found = samples(client.get("/metrics"))
    assert found["penstock_queues_left_out"] == 1
    assert {name for name in found if name.startswith("penstock_oldest_age_seconds")} == {
        f'penstock_oldest_age_seconds{{queue="{name}"}}' for name in ("a", "b")
    }


def test_an_unexpected_error_is_500_logged_and_does_not_leak(serve: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(server.app.log, "write", lambda **fields: written.append(fields))

    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    with server.client() as client:
        monkeypatch.setattr(server.app.broker.store, "list_queues", fail)
        answer = client.get("/queues", X_Request_Id="mine")
        assert (answer.status, answer.json["code"]) == (500, "internal_error")
        assert b"secret" not in answer.body
    [line] = [line for line in written if line.get("level") == "error" and "request_id" in line]
    assert line["request_id"] == "mine"
    assert "ZeroDivisionError" in line["error"]


# Traces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def traced(folder: Path) -> Iterator[tuple[App, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = Settings(access_log=False, canary_ms=0)
    yield App(Broker(SqliteStore(folder / "queue.db")), settings, tracer=Tracer(provider)), exporter


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_consumer_span_is_linked_to_the_producers_trace(tmp_path: Path) -> None:
    async def scenario(app: App) -> None:
        await app.broker.push("q", [PushItem(payload=b"1", headers={"traceparent": PARENT})], create=QueueOptions())
        await app.broker.push("q", [PushItem(payload=b"2", headers={"traceparent": "nonsense"})])
        await ask(app, "POST", "/queues/q/poll", query=b"wait_ms=0&batch=5")
        await ask(app, "GET", "/nothing")
        await app.broker.close()

    with traced(tmp_path) as (app, exporter):
        asyncio.run(scenario(app))
    [poll] = named(exporter, "POST /queues/{queue}/poll")
    assert [f"{link.context.trace_id:032x}" for link in poll.links] == [PARENT.split("-")[1]]
    assert poll.attributes is not None
    assert poll.attributes["http.response.status_code"] == 200
    assert poll.attributes["messaging.batch.message_count"] == 2
    assert named(exporter, "GET unmatched")
    commits = named(exporter, "commit")
    assert len(commits) >= 3
    assert all(span.attributes and span.attributes["penstock.commands"] for span in commits)


def test_a_producer_span_is_a_child_of_its_caller(tmp_path: Path) -> None:
    async def scenario(app: App) -> None:
        await app.broker.configure("q", create=QueueOptions())
        await ask(app, "POST", "/queues/q/messages", b'{"payload": 1}', headers=[(b"traceparent", PARENT.encode())])
        [message] = await app.broker.lease("q")
        assert message.headers == {"traceparent": PARENT}
        await app.broker.close()

    with traced(tmp_path) as (app, exporter):
        asyncio.run(scenario(app))
    [push] = named(exporter, "POST /queues/{queue}/messages")
    assert push.parent is not None
    assert f"{push.parent.span_id:016x}" == PARENT.split("-")[2]


def test_an_unresponsive_collector_does_not_prevent_shutdown(tmp_path: Path) -> None:
    """The batching is the SDK's own. Its exporter, which is not installed for the tests, hangs like one without a
    response."""
    module = tmp_path / "opentelemetry/exporter/otlp/proto/http/trace_exporter.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import time\n"
        "from opentelemetry.sdk.trace.export import SpanExporter\n"
        "class OTLPSpanExporter(SpanExporter):\n"
        "    def export(self, spans):\n"
        "        print('exporting', flush=True)\n"
        "        time.sleep(600)\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with process(tmp_path, "--otel", env={"PYTHONPATH": path}) as server:
        with server.client() as client:
            assert client.get("/healthz").status == 200
        assert server.terminate(20) == 0
        assert "exporting" in server.text()


def test_a_server_without_tracing_does_not_import_opentelemetry() -> None:
    script = """
        import json, sys
        import penstock.server.serve
        print(json.dumps([name for name in sys.modules if name.startswith("opentelemetry")]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=clean_environment()
    )
    assert json.loads(done.stdout) == [], done.stderr


def test_every_metric_has_help_and_a_type(serve: Fresh) -> None:
    with serve().client() as client:
        text = client.get("/metrics").body.decode()
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    typed = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert helped == typed
    assert {name.split("_")[0] for name in helped} == {"penstock", "process"}
