"""A relay in front of PostgreSQL that cuts the connection at a statement, usually a commit: either before the statement
reaches the server or before its response reaches the client."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMIT = b"COMMIT"
SOCKET = ".s.PGSQL.5432"


class Cutter:
    """Cuts one connection once it is armed. `meanwhile` runs before the client can notice."""

    def __init__(
        self,
        server_folder: Path,
        *,
        cut_before: bool,
        at: bytes = COMMIT,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = str(server_folder / SOCKET)
        self._cut_before = cut_before
        self.at = at
        self._meanwhile = meanwhile
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-cut-"))
        self.armed = threading.Event()
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / SOCKET))
        self._listener.listen()
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Cutter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:
                    # Refuse the client as a server that is down would. Later connections are accepted again.
                    client.close()
                    server.close()
                    continue
                self._connections += [client, server]
                threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client, server:
            while True:
                readable, _, _ = select.select([client, server], [], [])
                if server in readable:
                    response = server.recv(1 << 16)
                    client.sendall(response)
                    if not response:
                        return
                if client in readable:
                    request = client.recv(1 << 16)
                    if not request:
                        return
                    # The SQL text travels when the statement is prepared, which is on each connection's first commit.
                    cut = self.at in request and self.armed.is_set()
                    if cut:
                        self.armed.clear()
                        self.cuts += 1
                        if self._cut_before:
                            self._meanwhile()
                            return
                    server.sendall(request)
                    if cut:
                        server.recv(1 << 16)
                        self._meanwhile()
                        return
