"""Waiting reads are woken by any append, also of another process, and end with their client or the server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.log.streams import FileStreams, streams_beside
from tests.integration.conftest import Fresh
from tests.integration.serving import Client, Running, process
from tests.integration.streaming import ARROW, append, create, rows
from tests.integration.test_server_disconnects import hang_up, wait_until

APPEND_ELSEWHERE = """
import sys
from penstock.log.streams import FileStreams
streams = FileStreams(sys.argv[1])
for line in sys.stdin:
    streams.append("s", [line.strip().encode()])
    print("done", flush=True)
"""


def waiting(server: Running) -> int:
    assert server.app.streams is not None
    return server.app.streams.log_waiters.waiting


class WaitingRead:
    """A waiting read in another thread."""

    def __init__(self, server: Running, path: str, **headers: str) -> None:
        self._server, self._path, self._headers = server, path, headers
        before = waiting(server)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: waiting(server) > before)

    def _run(self) -> None:
        with self._server.client() as client:
            self._answer = client.get(self._path, **self._headers)

    def answer(self) -> Any:
        self._thread.join(60)
        return self._answer


@pytest.fixture
def stream(client: Client, name: str) -> str:
    return create(client, name)


def test_an_append_wakes_every_read_that_waits_for_it(server: Running, client: Client, stream: str) -> None:
    reads = [WaitingRead(server, f"{stream}/records?from=0&wait_ms=60000") for _ in range(5)]
    reads.append(WaitingRead(server, f"{stream}/next?consumer=c&wait_ms=60000"))
    columns = WaitingRead(server, f"{stream}/records?wait_ms=60000", accept=ARROW)
    append(client, stream, "now")
    assert [[r["data"] for r in read.answer().json["records"]] for read in reads] == [["now"]] * 6
    assert [row["data"] for row in rows(columns.answer())] == [b"now"]
    assert waiting(server) == 0


def test_only_appends_to_the_same_stream_wake_a_read(server: Running, client: Client, stream: str) -> None:
    other = create(client, stream.rpartition("/")[2] + "-other")
    append(client, stream, "first")
    read = WaitingRead(server, f"{stream}/records?from=1&wait_ms=60000")
    append(client, other, "elsewhere")
    append(client, stream, "second")
    assert [r["data"] for r in read.answer().json["records"]] == ["second"]


def test_a_read_that_times_out_is_empty(client: Client, stream: str) -> None:
    assert client.get(f"{stream}/records?wait_ms=1").json == {"records": [], "next": 0}
    assert client.get(f"{stream}/next?consumer=c&wait_ms=1").json == {"records": [], "next": 0}
    assert rows(client.get(f"{stream}/records?wait_ms=1", accept=ARROW)) == []


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_waiting_read_of_a_disconnected_client_ends(server: Running, stream: str, how: str) -> None:
    link = server.connect()
    link.sendall(f"GET {stream}/records?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    wait_until(lambda: waiting(server) == 1)
    hang_up(link, how)
    wait_until(lambda: waiting(server) == 0)


def test_appends_by_another_process_wake_a_read(serve: Fresh) -> None:
    server = serve()
    with server.client() as client:
        path = create(client, "s")
        read = WaitingRead(server, f"{path}/records?wait_ms=60000")
        folder = str(streams_beside(server.path))
        with subprocess.Popen(
            [sys.executable, "-c", APPEND_ELSEWHERE, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for number in range(5):
                other.stdin.write(f"{number}\n")
                other.stdin.flush()
                assert other.stdout.readline() == "done\n"
                [record] = read.answer().json["records"]
                assert record["offset"] == number
                # While the other process writes, an append of this server is refused.
                refused = client.post(f"{path}/records", {"records": ["x"]})
                assert (refused.status, refused.json["code"]) == (503, "store_busy")
                read = WaitingRead(server, f"{path}/records?from={number + 1}&wait_ms=60000")
            other.stdin.close()
            assert other.wait(60) == 0
        append(client, path, "ours")
        assert [r["data"] for r in read.answer().json["records"]] == ["ours"]


def test_other_processes_can_read_while_a_server_writes(serve: Fresh) -> None:
    server = serve()
    with server.client() as client:
        path = create(client, "s")
        streams = FileStreams(streams_beside(server.path))
        for number in range(3):
            append(client, path, f"{number}")
            assert streams.read("s", number).records[0].data == f"{number}".encode()
        streams.close()


def test_dropping_a_stream_ends_its_reads(server: Running, client: Client, stream: str) -> None:
    append(client, stream, "x")
    read = WaitingRead(server, f"{stream}/records?from=1&wait_ms=60000")
    client.delete(stream)
    assert read.answer().status == 404


def test_stopping_a_server_ends_waiting_reads_empty(tmp_path: Any) -> None:
    with process(tmp_path, "--data", "data") as server:
        with server.client() as client:
            path = create(client, "s")
        answers: list[Any] = []

        def read() -> None:
            with server.client() as client:
                answers.append(client.get(f"{path}/records?wait_ms=60000"))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        with server.client() as client:
            shown: Callable[[], bool] = lambda: b"penstock_stream_reads_waiting 3.0" in client.get("/metrics").body  # noqa: E731
            wait_until(shown)
        assert server.terminate() == 0
        for thread in threads:
            thread.join()
    assert [(answer.status, answer.json) for answer in answers] == [(200, {"records": [], "next": 0})] * 3


def test_too_many_waiting_reads_are_refused_with_retry_after(serve: Fresh) -> None:
    server = serve(polls_max=1)
    with server.client() as client:
        path = create(client, "s")
        read = WaitingRead(server, f"{path}/records?wait_ms=60000")
        refused = client.get(f"{path}/records?wait_ms=60000")
        assert (refused.status, refused.json["code"]) == (429, "too_many_polls")
        assert client.get(f"{path}/records").status == 200
        append(client, path, "x")
        assert read.answer().status == 200


def test_concurrent_appends_share_an_fsync(server: Running, client: Client, stream: str, name: str) -> None:
    append(client, stream, "opens it")
    desk: Any = server.app.streams
    active = desk.streams._used[name].log.active
    sync, gate, groups = active.sync, threading.Event(), []

    def hold() -> None:
        groups.append(len(desk._appends._waiting[name]))
        assert gate.wait(60)
        sync()

    active.sync = hold
    links = [server.connect() for _ in range(50)]
    links[0].sendall(_post(f"{stream}/records"))
    wait_until(lambda: groups)
    for link in links[1:]:
        link.sendall(_post(f"{stream}/records"))
    wait_until(lambda: len(desk._appends._waiting[name]) == 49)
    gate.set()
    assert all(b"201 Created" in link.recv(65_536) for link in links)
    for link in links:
        link.close()
    assert client.get(stream).json["next"] == 51
    assert len(groups) == 2


def _post(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: 8\r\n\r\ntogether".encode()
