"""A relay before PostgreSQL that cuts the line at a statement, mostly a commit: before it is passed on, or before its
answer is."""

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
    """Once armed, it cuts one line; `meanwhile` happens before anyone sees it."""

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
        self._lines: list[socket.socket] = []

    def __enter__(self) -> Cutter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()
        for line in self._lines:
            line.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:
                    # As the server itself would while it is down; the next one is let in again.
                    client.close()
                    server.close()
                    continue
                self._lines += [client, server]
                threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client, server:
            while True:
                readable, _, _ = select.select([client, server], [], [])
                if server in readable:
                    answer = server.recv(1 << 16)
                    client.sendall(answer)
                    if not answer:
                        return
                if client in readable:
                    asked = client.recv(1 << 16)
                    if not asked:
                        return
                    # A statement's text is sent when it is prepared: on the first commit of each connection.
                    cut = self.at in asked and self.armed.is_set()
                    if cut:
                        self.armed.clear()
                        self.cuts += 1
                        if self._cut_before:
                            self._meanwhile()
                            return
                    server.sendall(asked)
                    if cut:
                        server.recv(1 << 16)
                        self._meanwhile()
                        return
