"""A real server for tests: in a thread of this process, or as `penstock serve` in another process."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from penstock.config import PLAIN_NAMES, Settings
from penstock.server.app import App
from penstock.server.serve import listen, open_store_from, serve
from penstock.store.interface import Store

PATIENCE = 60.0
RUN = "from penstock.cli import main; main()"


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:300]!r}>"


class Client:
    """A plain HTTP client with one persistent connection."""

    def __init__(self, host: str, port: int, token: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self.host, self.port, self.token = host, port, token
        if context is None:
            self.connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        else:
            self.connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request. A body that is not bytes is sent as JSON, and the header `content_type` as Content-Type."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("content-type", "application/json")
        self.connection.request(method, path, body=body, headers=sent)
        response = self.connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.ask("DELETE", path, **headers)

    def queue(self, name: str, **options: Any) -> str:
        """Create a queue and return its path."""
        answer = self.post("/queues", {"name": name, **options})
        assert answer.status == 201, answer
        return "/queues/" + name.replace("/", "%2F")

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Running:
    """A server in a thread of this process, whose internals tests can reach."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._listener = listen(settings)
        self.port: int = self._listener.getsockname()[1]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server")
        self._error: BaseException | None = None
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        store, path = self._open()
        self.path = Path(path)
        await serve(self.settings, store, path, self._listener, stop=self._stop, ready=self._begin)

    def _open(self) -> tuple[Store, str]:
        return open_store_from(self.settings)

    def _begin(self, app: App) -> None:
        self.app = app
        self._ready.set()

    def client(self, token: str | None = None) -> Client:
        return Client("127.0.0.1", self.port, token or self.settings.auth_token)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Running]:
    defaults: dict[str, Any] = {"port": 0, "data": str(folder), "access_log": False, "canary_ms": 0, "sweep_ms": 200}
    server = Running(Settings(**defaults | settings))
    try:
        yield server
    finally:
        server.stop()


class Process:
    """A `penstock serve` process, started as a user starts it."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self._log = folder / "serve.log"
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, "serve", *flags, *([] if "--port" in flags else ["--port", "0"])],
                stderr=log,
                stdout=log,
                cwd=folder,
                env=clean_environment() | (env or {}),
            )
        self.port = self._find_port()

    def _find_port(self) -> int:
        for _ in range(int(PATIENCE / 0.05)):
            found = re.findall(r"listens on https?://\S+:(\d+)", self.text())
            if found:
                return int(found[-1])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                raise AssertionError(self.text())
        raise AssertionError("the server did not start")

    def client(self, token: str | None = None) -> Client:
        return Client("127.0.0.1", self.port, token)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]

    def text(self) -> str:
        """Return everything that the server has written to its log."""
        return self._log.read_bytes()[self._begin :].decode()

    def terminate(self, seconds: float = PATIENCE) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def process(folder: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    server = Process(folder, *flags, env=env)
    try:
        yield server
    finally:
        server.close()


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables that configure a server."""
    names = {*PLAIN_NAMES, "HOST", "LISTEN_ADDR", "PG_HOST"}
    return {k: v for k, v in os.environ.items() if k not in names and not k.startswith("PENSTOCK_")}
