"""A proxy before an S3 server that counts requests and, at will, fails, delays or cuts off answers.

It is a process of its own (`ProxyProcess`), because calls of delta-rs may hold the interpreter's lock while they wait.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from typing import BinaryIO

FAILED = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
CHUNK_BYTES = 64 << 10
COUNTS = "/-/counts"


class FaultyProxy:
    """Passes requests on to a port of this machine. `faults` is the share of answers that something happens to."""

    def __init__(self, target: int, faults: float, delay_ms: int, seed: int) -> None:
        self.requests: Counter[str] = Counter()
        """By method."""
        self.injected: Counter[str] = Counter()
        self._faults = faults
        self._delay_s = delay_ms / 1000
        self._target = target
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError), ExitStack() as stack:
            stack.enter_context(client)
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._target)))
            from_client, from_server = (stack.enter_context(each.makefile("rb")) for each in (client, server))
            while self._pass_on(from_client, from_server, client, server):
                pass

    def _pass_on(
        self, from_client: BinaryIO, from_server: BinaryIO, client: socket.socket, server: socket.socket
    ) -> bool:
        """Pass on one request and its answer; False if the connection ends."""
        head, fields = _head(from_client)
        if not head:
            return False
        method, path, _ = head.decode("latin-1").split(" ", 2)
        if path == COUNTS:
            counts = json.dumps([self.requests, self.injected]).encode()
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(counts) + counts)
            return False
        self.requests[method] += 1
        time.sleep(self._delay_s)
        fault = self._fault()
        if fault == "failed before":
            client.sendall(FAILED)
            return False
        server.sendall(head)
        _copy(from_client, server, fields)
        answer, fields = _head(from_server)
        while answer.startswith(b"HTTP/1.1 100"):
            answer, fields = _head(from_server)
        if fault == "failed after":  # It is done, but the client does not know.
            client.sendall(FAILED)
            return False
        if fault == "cut off":
            client.sendall(answer[: len(answer) // 2])
            return False
        if fault == "truncated":
            client.sendall(answer + from_server.read(int(fields.get("content-length", 0)) // 2))
            return False
        if fault == "slow":
            time.sleep(self._chance.uniform(0.1, 2))
        client.sendall(answer)
        no_body = method == "HEAD" or answer.split(b" ", 2)[1] in (b"204", b"304")
        _copy(from_server, client, {} if no_body else fields)
        return fields.get("connection", "").lower() != "close"

    def _fault(self) -> str | None:
        if self._chance.random() >= self._faults:
            return None
        found = self._chance.choice(("failed before", "failed after", "cut off", "truncated", "slow"))
        self.injected[found] += 1
        return found


class ProxyProcess:
    def __init__(self, target: int, *, faults: float = 0.0, delay_ms: int = 0, seed: int = 0) -> None:
        arguments = [str(target), str(faults), str(delay_ms), str(seed)]
        command = [sys.executable, __file__, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Requests by method, and injected faults by kind."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{COUNTS}") as answer:
            requests, injected = json.load(answer)
        return Counter(requests), Counter(injected)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _head(source: BinaryIO) -> tuple[bytes, dict[str, str]]:
    lines = []
    while line := source.readline():
        lines.append(line)
        if line == b"\r\n":
            fields = (each.decode("latin-1").partition(":") for each in lines[1:-1])
            return b"".join(lines), {name.lower(): value.strip() for name, _, value in fields}
    return b"", {}


def _copy(source: BinaryIO, target: socket.socket, fields: dict[str, str]) -> None:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        while True:
            line = source.readline()
            size = int(line.split(b";")[0], 16)
            target.sendall(line + source.read(size + 2))
            if size == 0:
                return
    left = int(fields.get("content-length", 0))
    while left:
        data = source.read(min(left, CHUNK_BYTES))
        if not data:
            raise ValueError("cut off")
        target.sendall(data)
        left -= len(data)


if __name__ == "__main__":
    proxy = FaultyProxy(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    print(proxy.port, flush=True)
    proxy.run()
