"""Runs all code blocks of a documentation page in order, in one empty folder and with their own server.

    bash             runs and must succeed
    bash background  runs until the end of the page
    console          commands after `$ ` and their output, in which `…` matches anything
    python           runs in one namespace per page; with the first line `# name.py`, it is written to that file instead
    sql              is written to the file named in its first line, `-- name.sql`
    text             after a python block: the expected output; elsewhere only shown

Every port 88xx is replaced by a free one, `make` runs with -n, and $STORE is the URL of an empty PostgreSQL schema.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.integration.serving import clean_environment
from tools import provision

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/tutorial/*.md"), *ROOT.glob("docs/howto/*.md")])
TIMEOUT_SECONDS = 600.0
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"(?:#|--) ([\w.-]+\.\w+)\n")
SPARK = re.compile(r"penstock[ .]pipeline|pyspark|penstock demo")


def needs_spark(page: Path) -> bool:
    return SPARK.search("".join(code for _, _, code in blocks(page))) is not None


def needs_postgres(page: Path) -> bool:
    return "$STORE" in page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Return the language, the mode (such as "background") and the code of each block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


class Walk:
    def __init__(self, page: Path, folder: Path, store: str | None) -> None:
        self.page, self.folder = page, folder
        self._background: list[subprocess.Popen[bytes]] = []
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._ports: dict[str, str] = {}
        self._printed: io.StringIO | None = None
        tools = folder.parent / f"{folder.name}-tools"
        tools.mkdir()
        _script(tools / "make", f'exec /usr/bin/env PATH=/usr/bin:/bin make -n -C "{ROOT}" "$@"')
        _script(tools / "curl", 'exec /usr/bin/env PATH=/usr/bin:/bin curl -sS --fail-with-body "$@"')
        programs = json.loads(provision.CHOICE.read_text())["postgres"]["bin"]
        self.environment = clean_environment() | {
            "PATH": f"{tools}:{Path(sys.executable).parent}:{programs}:/usr/bin:/bin",
            "PENSTOCK_URL": f"http://127.0.0.1:{self._port('8888')}",
            "PENSTOCK_PORT": self._port("8888"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
        }
        if store is not None:
            self.environment["STORE"] = store

    def run(self) -> None:
        found = blocks(self.page)
        if not any(mode == "background" and code.startswith("penstock serve\n") for _, mode, code in found):
            self._start("penstock serve --data penstock-data")
        try:
            for language, mode, code in found:
                self._run_block(language, mode, self._with_free_ports(code))
        finally:
            self._stop()

    def _run_block(self, language: str, mode: str, code: str) -> None:
        named = FILE.match(code)
        if named:
            (self.folder / named[1]).write_text(code, encoding="utf-8")
        elif mode == "background":
            self._start(code)
        elif language == "bash":
            self.shell(code)
        elif language == "console":
            self._run_console(code)
        elif language == "python":
            self._printed = io.StringIO()
            with contextlib.redirect_stdout(self._printed), contextlib.chdir(self.folder):
                exec(compile(code, str(self.page), "exec"), self._names)
            return
        elif language == "text" and self._printed is not None:
            assert _matches(code, self._printed.getvalue()), self._printed.getvalue()
        self._printed = None

    def shell(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _run_console(self, code: str) -> None:
        for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
            command, _, wanted = part.partition("\n")
            while command.endswith("\\"):
                more, _, wanted = wanted.partition("\n")
                command += "\n" + more
            shown = self.shell(command)
            assert _matches(wanted, shown), f"$ {command}\n{shown}"

    def _with_free_ports(self, code: str) -> str:
        return re.sub(r"\b(88\d\d)\b", lambda found: self._port(found[1]), code)

    def _port(self, shown: str) -> str:
        if shown not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[shown] = str(free.getsockname()[1])
        return self._ports[shown]

    def _start(self, script: str) -> None:
        """Start each line as a process, and wait until a server is ready."""
        for line in script.strip().splitlines():
            log = self.folder.parent / f"{self.folder.name}-background-{len(self._background)}.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    ["bash", "-c", f"exec {line}"],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            self._background.append(process)
            if line.startswith("penstock serve"):
                self._wait_for(process, log)

    def _wait_for(self, process: subprocess.Popen[bytes], log: Path) -> None:
        tick = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS / 0.05)):
            if "listens on" in log.read_text(encoding="utf-8"):
                return
            assert process.poll() is None, log.read_text(encoding="utf-8")
            tick.wait(0.05)
        raise AssertionError("the server did not start")

    def _stop(self) -> None:
        for name in ("queue", "client"):
            if name in self._names and hasattr(self._names[name], "close"):
                self._names[name].close()
        for process in reversed(self._background):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _matches(wanted: str, shown: str) -> bool:
    pattern = ".*".join(re.escape(_normalize(each)) for each in wanted.split("…"))
    return re.fullmatch(pattern, _normalize(shown), re.DOTALL) is not None


def _normalize(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
