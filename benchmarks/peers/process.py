"""Runs a server as a child process with its own cores and its own log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil

STOP_S = 15


class Child:
    def __init__(self, command: list[str], folder: Path, cores: set[int] | None, env: dict[str, str] | None) -> None:
        self.log = folder / f"{Path(command[0]).name}.log"
        mine = os.sched_getaffinity(0)
        # The affinity is inherited, so that a server that counts its cores at startup sees the right number.
        os.sched_setaffinity(0, cores or mine)
        try:
            with self.log.open("ab") as log:
                self.popen = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.sched_setaffinity(0, mine)
        self.process = psutil.Process(self.popen.pid)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def check(self) -> None:
        if self.popen.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise RuntimeError(f"{self.log.stem} ended with {self.popen.returncode}: {lines[-1][:300]}")

    def family(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        total = 0.0
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def rss_bytes(self) -> int:
        total = 0
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def stop(self) -> None:
        family = self.family()
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        for process in family[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_line(command: list[str]) -> str:
    """Return the first line of a command's output, such as a version."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"
