"""`penstock serve` as a process: banner, settings, TLS, signals and restarts."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.config import Settings, load_settings
from penstock.errors import InvalidInput
from tests.integration.serving import RUN, Client, clean_environment, process

# Settings


def settings(
    flags: dict[str, object] | None = None, env: dict[str, str] | None = None, file: Path | None = None
) -> Settings:
    return load_settings(flags or {}, env or {}, file)


def test_flags_override_variables_then_the_file_then_defaults(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("port = 1\nget_limit_default = 5\n")
    assert settings().port == 8888
    assert settings(file=file).port == 1
    assert settings(env={"PENSTOCK_CONFIG": str(file)}).get_limit_default == 5
    assert settings(env={"PORT": "2"}, file=file).port == 2
    assert settings(env={"PORT": "2", "PENSTOCK_PORT": "3"}, file=file).port == 3
    assert settings({"port": 4}, {"PORT": "2", "PENSTOCK_PORT": "3"}, file).port == 4
    assert settings({"port": None}, {"PORT": "2"}).port == 2
    assert settings(env={"GET_LIMIT_DEFAULT": "7"}, file=file).get_limit_default == 7


def test_variables_of_the_inbox_are_supported() -> None:
    read = settings(env={"AUTH_TOKEN": "t", "DB_PATH": "x.db", "LISTEN_ADDR": ":8080"})
    assert (read.auth_token, read.db, read.host, read.port) == ("t", "x.db", "0.0.0.0", 8080)
    assert settings(env={"LISTEN_ADDR": "127.0.0.1:1", "PORT": "2"}).port == 1
    assert settings(env={"LISTEN_ADDR": "[::1]:1"}).host == "::1"
    assert settings(env={"LISTEN_ADDR": ":1", "PENSTOCK_HOST": "127.0.0.1"}).host == "127.0.0.1"
    assert settings(env={"HOST": "my-laptop"}).host == "127.0.0.1"
    assert settings(env={"HOST": "10.0.0.1"}).host == "10.0.0.1"
    assert settings(env={"PENSTOCK_CORS_ORIGINS": "https://a, https://b"}).cors_origins == ["https://a", "https://b"]


def test_variables_of_the_tree_are_supported() -> None:
    environ = """
        PG_USER=postgres PG_HOST=localhost PG_DB=postgres PG_PASSWORD=postgres PG_PORT=5432 DB_POOL_SIZE=20
        DB_TIMEOUT=30000 PORT=3000 HOST=0.0.0.0 WORKER_ID=worker-here-1 QUEUE_POLL_INTERVAL=100 MAX_BATCH_SIZE=100
        DEFAULT_TIMEOUT=30000 MAX_TIMEOUT=60000 MAX_CONCURRENT_POLLS=1000 METRICS_COLLECTION_INTERVAL=5000
        METRICS_RETENTION_DAYS=30 WS_HEARTBEAT_INTERVAL=30000 WS_MAX_CONNECTIONS=1000"""
    read = settings(env=dict(pair.split("=") for pair in environ.split()))
    assert (read.store, read.pool_size) == ("postgresql://postgres:postgres@localhost:5432/postgres", 20)
    assert (read.busy_ms, read.sweep_ms, read.metrics_ms, read.metrics_days) == (30_000, 100, 5_000, 30)
    assert (read.ws_heartbeat_ms, read.ws_connections_max) == (30_000, 1_000)
    assert (read.host, read.port, read.worker_id) == ("0.0.0.0", 3000, "worker-here-1")
    assert (read.tree_batch_max, read.tree_timeout_ms, read.wait_ms_max, read.polls_max) == (100, 30_000, 60_000, 1_000)
    assert settings().worker_id.startswith("worker-")


PG_URL = "postgresql://postgres@db:5432/postgres"


def test_an_explicit_store_takes_precedence_over_a_data_folder() -> None:
    # Container images and systemd units always set PENSTOCK_DATA.
    folder = {"PENSTOCK_DATA": "/data"}
    assert settings(env=folder | {"PG_HOST": "db"}).store == PG_URL
    assert settings(env=folder | {"PENSTOCK_STORE": PG_URL}).store == PG_URL
    assert settings(env=folder | {"DB_PATH": "seed.db"}).db == "seed.db"
    assert settings({"data": "/data", "store": PG_URL}).store == PG_URL
    assert settings({"store": "sqlite:///x"}, {"PG_HOST": "db"}).store == "sqlite:///x"
    assert settings({"db": "flag.db"}, {"DB_PATH": "seed.db"}).db == "flag.db"


@pytest.mark.parametrize(
    ("flags", "env", "names"),
    [
        ({"data": "/x"}, {"PENSTOCK_STORE": PG_URL}, ("--data", "PENSTOCK_STORE")),
        ({"data": "/x"}, {"PG_HOST": "db"}, ("--data", "PG_HOST")),
        ({"data": "/x"}, {"DB_PATH": "seed.db"}, ("--data", "DB_PATH")),
        ({"db": "flag.db"}, {"PENSTOCK_STORE": PG_URL}, ("--db", "PENSTOCK_STORE")),
        ({}, {"DB_PATH": "seed.db", "PG_HOST": "db"}, ("DB_PATH", "PG_HOST")),
        ({"store": PG_URL}, {"DB_PATH": "seed.db"}, ("--store", "DB_PATH")),
    ],
)
def test_settings_that_name_two_stores_are_refused(
    flags: dict[str, object], env: dict[str, str], names: tuple[str, str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(flags, env)
    assert all(name in str(caught.value) for name in names)


def test_a_store_in_the_file_and_another_by_flag_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f'store = "{PG_URL}"\n')
    with pytest.raises(InvalidInput, match="store in the configuration file and --data"):
        settings({"data": "/x"}, file=file)


@pytest.mark.parametrize(
    "env",
    [
        {"PORT": "x"},
        {"PORT": "70000"},
        {"LISTEN_ADDR": "8080"},
        {"LISTEN_ADDR": "host"},
        {"PENSTOCK_DURABILITY": "maybe"},
        {"PENSTOCK_CONFIG": "/nowhere.toml"},
        {"PENSTOCK_CONFIG": "/"},
    ],
)
def test_an_invalid_setting_is_named(env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(env=env)
    assert caught.value.field


def test_a_file_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(InvalidInput, match="prot"):
        settings(file=file)
    file.write_text("port = [\n")
    with pytest.raises(InvalidInput, match="TOML"):
        settings(file=file)


# The process


def run_serve(folder: Path, *flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "serve", *flags],
        cwd=folder,
        env=clean_environment() | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_banner_shows_address_and_durability(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        banner = server.text()
        assert f"http://127.0.0.1:{server.port} without authentication" in banner
        assert "penstock-data/penstock.db" in banner
        assert "full: every write is fsynced before it is acknowledged" in banner
        assert f"http://127.0.0.1:{server.port}/docs" in banner
        assert server.terminate() == 0
    with process(tmp_path, "--durability", "relaxed", env={"AUTH_TOKEN": "t"}) as server:
        assert "RELAXED" in server.text()
        with server.client("t") as client:
            assert client.get("/queues").status == 200


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--host", "0.0.0.0"], "without a token"),
        (["--store", "mysql://x"], "cannot serve from mysql"),
        (["--tls-cert", "serve.toml"], "a certificate and a key"),
        (["--tls-cert", "serve.toml", "--tls-key", "serve.toml"], "cannot use the certificate"),
        (["--host", "256.1.1.1", "--insecure"], "cannot listen"),
    ],
)
def test_a_server_that_cannot_start_prints_one_line(tmp_path: Path, flags: list[str], text: str) -> None:
    (tmp_path / "serve.toml").write_text("")
    done = run_serve(tmp_path, "--port", "0", *flags)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        done = run_serve(tmp_path, "--port", str(server.port))
        assert "cannot listen" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_server_supports_tls(tmp_path: Path) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*make, *subject, "-days", "2"], cwd=tmp_path, check=True, capture_output=True)
    flags = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with process(tmp_path, *flags) as server:
        assert f"https://127.0.0.1:{server.port}" in server.text()
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with Client("127.0.0.1", server.port, context=context) as client:
            queue = client.queue("q")
            client.post(f"{queue}/messages", {"payload": "x" * 400_000})
            [message] = client.post(f"{queue}/poll").json["messages"]
            assert client.post(f"{queue}/ack", {"id": message["id"], "token": message["token"]}).status == 200
        assert server.terminate() == 0


def test_sigterm_ends_polls_finishes_commits_and_keeps_leases(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        with server.client() as client:
            queue = client.queue("q", visibility_ms=600_000)
            client.queue("idle")
            client.post(f"{queue}/messages", {"messages": [{"payload": 1}, {"payload": 2}]})
            [leased] = client.post(f"{queue}/poll").json["messages"]
        answers: list[int] = []
        pushed: list[int] = []
        waiting = [threading.Thread(target=wait_empty, args=(server.port, answers)) for _ in range(20)]
        pushing = [threading.Thread(target=push_on, args=(server.port, pushed)) for _ in range(4)]
        for thread in [*waiting, *pushing]:
            thread.start()
        with server.client() as client:
            while b"penstock_long_polls_open 20.0" not in client.get("/metrics").body:
                time.sleep(0.02)
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 9, "within the grace period"
        for thread in [*waiting, *pushing]:
            thread.join()
        assert answers == [200] * 20
    with process(tmp_path) as server, server.client() as client:
        stats = client.get(f"{queue}/stats").json
        assert stats["leased"] == 1
        ready = {m["id"] for m in client.post(f"{queue}/poll?batch=10000&wait_ms=0").json["messages"]}
        assert set(pushed) <= ready, "acknowledged pushes are stored"
        assert client.post(f"{queue}/ack", {"id": leased["id"], "token": leased["token"]}).status == 200
    assert "Traceback" not in server.text()


def wait_empty(port: int, answers: list[int]) -> None:
    with Client("127.0.0.1", port) as client:
        answer = client.post("/queues/idle/poll?wait_ms=60000")
        assert answer.json == {"messages": []}
        answers.append(answer.status)


def push_on(port: int, pushed: list[int]) -> None:
    try:
        while True:
            with Client("127.0.0.1", port) as client:
                answer = client.post("/queues/q/messages", {"payload": 1})
                if answer.status == 201:
                    pushed.append(answer.json["id"])
    except (OSError, json.JSONDecodeError, ValueError):
        return
    except Exception as error:
        if type(error).__module__ != "http.client":
            raise


def test_an_event_stream_does_not_delay_shutdown(tmp_path: Path) -> None:
    with process(tmp_path) as server, server.client() as client, server.client() as listener:
        queue = client.queue("q")
        listener.connection.request("GET", f"{queue}/events")
        assert listener.connection.getresponse().readline().startswith(b":")
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 9


def test_a_client_that_does_not_read_delays_shutdown_only_by_the_grace_period(tmp_path: Path) -> None:
    with process(tmp_path, env={"PENSTOCK_GRACE_MS": "1000"}) as server, server.client() as client:
        queue = client.queue("q")
        for _ in range(40):
            client.post(f"{queue}/messages", {"payload": "x" * 500_000})
        with server.client() as idle:
            idle.connection.request("GET", f"{queue}/export")
            idle.connection.getresponse().read(10)
            started = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - started < 15


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with process(tmp_path, env={"PENSTOCK_GRACE_MS": "60000"}) as server, server.client() as client:
        queue = client.queue("q")
        for _ in range(40):
            client.post(f"{queue}/messages", {"payload": "x" * 500_000})
        with server.client() as idle:
            idle.connection.request("GET", f"{queue}/export")
            idle.connection.getresponse().read(10)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            os.kill(server.process.pid, signal.SIGINT)
            assert server.process.wait(30) == 0
