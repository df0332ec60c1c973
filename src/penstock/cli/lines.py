"""Lines of a file or of stdin, for commands that continue after an interruption."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

LINE_BYTES_MAX = 64 << 20
STDIN = "-"


class BadLine(Exception):
    """A line that is not valid. The lines before it are still sent."""


class InputLines:
    """Reads lines with their numbers."""

    def __init__(self, name: str) -> None:
        self.name = "stdin" if name == STDIN else name
        # Number of lines; None until all were checked.
        self.total: int | None = None
        self._path = None if name == STDIN else Path(name)

    def read(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        with nullcontext(sys.stdin.buffer) if self._path is None else self._path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line

    def check_all(self, check: Callable[[int, bytes], object], start: bytes = b"") -> str | None:
        """Check every line before the first is sent, and return a key derived from `start` and the content.

        Returns None for a pipe, which cannot be read twice.
        """
        if self._path is None or not self._path.is_file():
            return None
        import hashlib

        digest, number = hashlib.sha256(start), 0
        for number, line in self.read():
            digest.update(line)
            check(number, line)
        self.total = number
        return f"file:{digest.hexdigest()[:40]}"

    def bad(self, number: int, reason: str) -> BadLine:
        return BadLine(f"line {number} of {self.name}: {reason.replace('the body', 'it')}")
