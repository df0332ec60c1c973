"""Command output: JSON for machines, a table for people, plain aligned text in a pipe.

Rich is imported only to draw on a terminal.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

import click
import msgspec

Data = dict[str, Any]
Row = Sequence[Any]


class Advance(Protocol):
    def __call__(self, count: int, total: int | None = None) -> None:
        """Report `count` more as done, of a total if it is known by now."""


CELL_MAX = 200
ANSWER_SECONDS = 1.0
ANSWER_BYTES_MAX = 100


class Output:
    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, value: Any, draw: Callable[[], None]) -> None:
        """Print the value as one line of JSON, or call `draw`."""
        if self.as_json:
            write(_json(value) + b"\n")
        else:
            draw()

    def table(self, headings: Sequence[str], rows: Sequence[Row], *, empty: str) -> None:
        """Print the rows under a heading; without rows, print `empty` on stderr."""
        if not rows:
            note(empty)
            return
        cells = [[_cell(value) for value in row] for row in rows]
        if sys.stdout.isatty():
            _draw(headings, cells)
            return
        widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
        for line in (headings, *cells):
            padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
            write(_bytes("  ".join(padded).rstrip() + "\n"))

    def fields(self, values: Mapping[str, Any]) -> None:
        """Print one field per line."""
        width = max(map(len, values), default=0)
        for name, value in values.items():
            label = click.style(name, fg="cyan") if sys.stdout.isatty() else name
            write(_bytes(f"{label}{' ' * (width - len(name))}  {_cell(value)}\n"))


def plain(view: Any) -> Data:
    """Return a response of the API as a client gets it: with payloads as values, not as encoded JSON."""
    data: Data = msgspec.json.decode(msgspec.json.encode(view))
    return data


def _bytes(text: str) -> bytes:
    """Encode the text, escaping bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace")


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Surrogate escapes, so that Python reads the same file name back.
        return json.dumps(msgspec.to_builtins(value)).encode()


def write(data: bytes) -> None:
    """Write to stdout; exit without an error if the reader has closed the pipe."""
    try:
        click.echo(data, nl=False)
    except BrokenPipeError:
        abandon_stdout()


def abandon_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail on a closed pipe."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
    raise click.exceptions.Exit(141)


def note(text: str) -> None:
    """Print a line for people on stderr, apart from the data."""
    click.echo(" ".join(text.split()), err=True)


def confirm(question: str, yes: bool) -> None:
    """Ask before destroying something, on a terminal or if an answer is piped in. A script need not answer."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        agreed = _piped_answer()
    else:
        try:
            agreed = click.confirm(question, err=True)
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
    if not agreed:
        raise click.ClickException("nothing was changed")


def _piped_answer() -> bool:
    """Return the answer on stdin, or True if there is none.

    A CI runner's stdin, for example, is a pipe that stays open and silent.
    """
    try:
        file = sys.stdin.fileno()
        is_file = stat.S_ISREG(os.fstat(file).st_mode)
        if not is_file and not select.select([file], [], [], ANSWER_SECONDS)[0]:
            return True
        start = os.lseek(file, 0, os.SEEK_CUR) if is_file else 0
        line = b""
        # Read byte by byte, because the next line may be for the script's next command.
        while len(line) < ANSWER_BYTES_MAX and not line.endswith(b"\n") and (byte := os.read(file, 1)):
            line += byte
    except (AttributeError, OSError, ValueError):
        return True  # There is no stdin.
    answer = line.strip().lower()
    if not line or answer in (b"y", b"yes"):
        return True
    if answer in (b"n", b"no") or not (answer or is_file):
        return False
    if is_file:
        # The line is not an answer but the next input of a loop such as `while read name; do …; done < names`.
        os.lseek(file, start, os.SEEK_SET)
        return True
    shown = line.strip().decode("utf-8", "backslashreplace")
    raise click.ClickException(
        f"expected y or n on stdin, got {shown!r}; nothing was changed (--yes skips the question)"
    )


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """Show a progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda count, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count, total=None: bar.update(task, advance=count, total=total)


def advance_to(advance: Advance) -> Callable[[int, int], None]:
    """Return a function to call with how much is done of a total."""
    before = 0

    def report(done: int, total: int) -> None:
        nonlocal before
        advance(done - before, total)
        before = done

    return report


def when(ms: int | None) -> str | None:
    """Format milliseconds since 1970 as a readable time."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(ms)


def compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def payload_cell(message: Mapping[str, Any]) -> str:
    text = compact(message["payload"])
    return text if message.get("encoding") is None else f"{message['encoding']}:{text}"


def _cell(value: Any) -> str:
    """Format a value as one line without control characters, so that no payload can send escapes to the terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    if sys.stdout.isatty() and len(text) > CELL_MAX:
        return text[: CELL_MAX - 1] + "…"
    return text


def _draw(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
    for position, heading in enumerate(headings):
        numeric = all(row[position].replace(".", "", 1).isdigit() or row[position] == "-" for row in cells)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)
