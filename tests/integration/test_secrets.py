"""Secrets do not appear in logs, errors, metrics or process lists, and files are private to their owner."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import penstock
from tests.integration.command_line import penstock as command
from tests.integration.serving import Running, process

TOKEN = "a-token-that-nobody-may-see"
SECRET = "a-secret-that-nobody-may-see"
PASSWORD = "a-password-that-nobody-may-see"
BODY = "a-body-that-nobody-may-see"
STORE = f"postgresql://someone:{PASSWORD}@127.0.0.1:1/nowhere?connect_timeout=2"


def test_a_server_shows_no_secret(tmp_path: Path) -> None:
    outputs: list[str] = []
    with process(tmp_path, env={"AUTH_TOKEN": TOKEN}) as server:
        with server.client(TOKEN) as admin:
            admin.queue("q", secret=SECRET)
            key = admin.post("/queues/q/keys", {"name": "app", "rights": ["push"]}).json["key"]
            paths = ("/queues/q", "/queues", "/metrics", "/openapi.json", "/docs", "/queues/q/keys", "/journal/events")
            outputs += [admin.get(path).body.decode() for path in paths]
            outputs.append(admin.post("/queues/q/messages", {"payload": BODY}).body.decode())
            outputs.append(admin.post("/queues", {"name": "q", "secret": SECRET + "-another"}).body.decode())
            outputs.append(
                admin.post("/queues/q/messages", {"payload": BODY, "signature": f"t=1,v1={SECRET}"}).body.decode()
            )
        with server.client(key) as app:
            outputs.append(app.get("/queues/q/dlq").body.decode())
            outputs.append(app.delete("/queues/q").body.decode())
        with server.client(TOKEN + "-wrong") as stranger:
            outputs.append(stranger.get(f"/queues/q?token={TOKEN}").body.decode())
        outputs.append(" ".join(psutil.Process(server.process.pid).cmdline()))
        assert server.terminate() == 0
        outputs.append(server.text())
    for text in outputs:
        for secret in (TOKEN, SECRET, key, BODY):
            assert secret not in text, text[:500]


def test_an_unreachable_database_does_not_leak_its_password(tmp_path: Path) -> None:
    done = command("queue", "list", "--url", f"http://someone:{PASSWORD}@127.0.0.1:1")
    assert done.code != 0
    assert PASSWORD not in done.out + done.err
    served = command("serve", "--store", STORE, "--port", "0")
    assert served.code != 0
    assert PASSWORD not in served.out + served.err
    with pytest.raises(penstock.PenstockError) as raised:
        penstock.connect(STORE)
    assert PASSWORD not in str(raised.value) + repr(raised.value)


@pytest.mark.parametrize("before", ["%zz", "/", "?", "[", "8/", "@/", "/@"])
@pytest.mark.parametrize("scheme", ["postgresql", "http", "mysql"])
def test_an_unescaped_password_is_not_shown_either(scheme: str, before: str) -> None:
    url = f"{scheme}://someone:{before}{PASSWORD}@127.0.0.1:1/nowhere"
    with pytest.raises(penstock.InvalidInput) as raised:
        penstock.connect(url)
    assert PASSWORD not in str(raised.value) + repr(raised.value)
    done = command("queue", "list", "--url", url)
    assert done.code == 2
    assert PASSWORD not in done.out + done.err


@pytest.fixture
def _lax_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in files}


@pytest.mark.usefixtures("_lax_umask")
def test_files_of_a_program_are_private(tmp_path: Path) -> None:
    with contextlib.closing(penstock.LiteQueue(tmp_path / "tasks.db", journal=True)) as queue:
        queue.put(b"x")
        queue.pop()
        with penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as client:
            client.create_stream("s").append("x")
            assert set(modes(tmp_path).values()) == {0o600}


@pytest.mark.usefixtures("_lax_umask")
def test_files_of_a_server_and_its_backup_are_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with process(tmp_path, "--data", str(data)) as server:
        with server.client() as client:
            client.queue("q")
            client.post("/queues/q/messages", {"payload": 1})
            client.post("/streams", {"name": "s"})
            client.post("/streams/s/records", {"records": [1]})
        found = modes(data)
        assert set(found.values()) == {0o600}, found
        assert command("backup", "--data", str(data), str(tmp_path / "copy.db")).code == 0
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


HOSTILE = (
    "..",
    "../x",
    "..%2Fx",
    "%2Fetc%2Fpasswd",
    "a/../../b",
    ".",
    "a%00b",
    "a%0Ab",
    "%2e%2e%2fx",
    "~root",
    "a\\b",
    "x" * 300,
)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["queues", "streams"])
def test_a_name_cannot_reach_another_file(kind: str, name: str, server: Running) -> None:
    before = set(server.path.parent.parent.iterdir())
    with server.client() as client:
        made = client.post(f"/{kind}", {"name": name.replace("%2F", "/").replace("%00", "\0")})
        answer = client.get(f"/{kind}/{name}".replace("\\", "%5C"))
    assert made.status in (400, 422)
    assert answer.status in (400, 404, 422)
    assert set(server.path.parent.parent.iterdir()) == before


@pytest.mark.parametrize("consumer", ["..", "../../x", "a/b", "a%2Fb", "%2e%2e"])
def test_a_consumer_name_cannot_reach_another_file(consumer: str, server: Running) -> None:
    with server.client() as client:
        client.post("/streams", {"name": "named"})
        answer = client.ask("PUT", f"/streams/named/consumers/{consumer.replace('/', '%2F')}", {"offset": 0})
    assert answer.status in (400, 404, 422)
