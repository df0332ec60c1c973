"""Runs `penstock` in this process or in another one, and starts servers for it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from penstock.cli import main

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
OWN_SETTINGS = ("PENSTOCK_", "AUTH_TOKEN", "LISTEN_ADDR", "DB_PATH", "PORT", "HOST", "GET_LIMIT_DEFAULT")
PATIENCE_SECONDS = 60


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def clean_environment(**settings: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN_SETTINGS)} | settings


def penstock(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Result:
    """Run the command like the console script, but in this process, which is faster."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, clean_environment(**(env or {})), clear=True))
        # The command sets the umask of the process, which here is the test process.
        stack.callback(os.umask, os.umask(0o022))
        stack.enter_context(mock.patch.object(sys, "argv", ["penstock", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
    out.flush()
    err.flush()
    assert isinstance(code, int)
    return Result(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


@dataclass
class Queues:
    """A file, database or server with queues, and the flags that select it."""

    flags: tuple[str, ...]
    kind: str

    def run(self, *arguments: str, stdin: bytes = b"") -> Result:
        return penstock(*arguments, *self.flags, stdin=stdin)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.code == 0, (arguments, result)
        return result.out

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))


def spawn(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command in another process."""
    options.setdefault("env", clean_environment())
    return subprocess.Popen([PENSTOCK, *arguments], **options)


@contextmanager
def server(folder: Path, **settings: str) -> Iterator[str]:
    """Run `penstock serve` on a free port and yield its address."""
    folder.mkdir(exist_ok=True)
    env = clean_environment(
        PENSTOCK_PORT="0", PENSTOCK_DATA=str(folder / "data"), PENSTOCK_CANARY_MS="0", PENSTOCK_ACCESS_LOG="false"
    )
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([PENSTOCK, "serve"], env=env | settings, stderr=stderr, cwd=folder)
    try:
        yield wait_for_address(process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"listens on (http://\S+) ", log.read_text())
        if found:
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"no server: {log.read_text()}")
