"""`penstock journal …`"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from penstock.cli.common import (
    DATA,
    DB,
    JSON,
    PAGE,
    STORE,
    TOKEN,
    URL,
    YES,
    QueueOption,
    address,
    call,
    file_of,
    open_server,
    reporting,
    where_of,
    with_options,
)
from penstock.cli.output import Data, Output, compact, confirm, plain, when, write
from penstock.cli.stream import finish_repair
from penstock.errors import CannotOpen

if TYPE_CHECKING:
    from penstock.cli.journal_local import LocalJournal
    from penstock.client._sync.client import Client

WAIT_MS = 20_000


class ServerJournal:
    def __init__(self, client: Client) -> None:
        assert client.transport.kind == "server"
        self._session = client.transport.session
        self.close = client.close

    def show(self) -> Data:
        return call(self._session, "GET", "/journal")

    def events(self, start: int, *, limit: int, wait_ms: int, queue: str | None, kind: str | None) -> Data:
        query = {"from": start, "limit": limit, "wait_ms": wait_ms, "queue": queue, "kind": kind}
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return call(self._session, "GET", f"/journal/events?{given}", wait_seconds=wait_ms / 1000)


def _open(
    url: str | None, token: str | None, db: str | None, data: str | None, store: str | None
) -> LocalJournal | ServerJournal:
    where = where_of(url, db, data, store)
    if where is None:
        return ServerJournal(open_server(url, token))
    from penstock.cli.journal_local import LocalJournal

    return LocalJournal(where)


def _on_journal(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(as_json: bool, **rest: Any) -> None:
        store = rest.pop("store")
        with reporting(), closing(_open(*address(rest), store)) as journal:
            command(journal, Output(as_json), **rest)

    return with_options(run, [URL, TOKEN, DB, DATA, STORE, JSON])


@click.group("journal")
def command() -> None:
    """Show and follow what happens to messages, in order."""


@command.command("show")
@_on_journal
def show(journal: LocalJournal | ServerJournal, out: Output) -> None:
    """Show the journal's offsets, size and consumers. JSON: the journal."""
    shown = journal.show()

    def draw() -> None:
        out.fields({name: shown[name] for name in ("first", "next", "bytes", "segments")})
        rows = [(each["consumer"], each["offset"], each["lag"]) for each in shown["consumers"]]
        out.table(("CONSUMER", "OFFSET", "LAG"), rows, empty="no consumer has committed an offset")

    out.show(shown, draw)


@command.command("repair")
@YES
@DB
@DATA
@JSON
def repair(yes: bool, db: str | None, data: str | None, as_json: bool) -> None:
    """Repair the journal of a queue file that no server has open. JSON: the report.

    Exit code 3 if records were lost, 1 if damage remains.
    """
    from penstock.journal.drainer import NAME, journal_folder
    from penstock.log.check import repair as repair_log
    from penstock.wire.streams import report_view

    path = file_of(db, data)
    if path is None:
        raise click.UsageError("give --db PATH (a queue file) or --data DIR (a server's data folder)")
    with reporting():
        if not journal_folder(path).is_dir():
            raise CannotOpen(f"{path} has no journal")
        confirm("Repair the journal and discard damaged records?", yes)
        # The store assigns the journal's offsets, so records that were cut off cannot be appended at new ones.
        report = repair_log(journal_folder(path), NAME, append_cuts=False)
        finish_repair(Output(as_json), NAME, plain(report_view(report)))


@command.command("tail")
@click.option("--from", "start", type=click.IntRange(0), help="Offset to start from.")
@click.option(
    "--lines", type=click.IntRange(0), default=10, show_default=True, help="Start this many records before the end."
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many events.")
@click.option("--queue", cls=QueueOption, help="Only events of this queue.")
@click.option("--kind", help="Only these kinds of event, separated by commas: pushed,acked,dead …")
@_on_journal
def tail(
    journal: LocalJournal | ServerJournal,
    out: Output,
    start: int | None,
    lines: int,
    limit: int | None,
    queue: str | None,
    kind: str | None,
) -> None:
    """Print the last events and follow new ones until interrupted. JSON: a line for each event."""
    _check_kinds(kind)
    if start is None:
        shown = journal.show()
        start = max(shown["first"], shown["next"] - lines)
    left = limit
    with suppress(KeyboardInterrupt):
        while left is None or left > 0:
            page = journal.events(start, limit=PAGE, wait_ms=WAIT_MS, queue=queue, kind=kind)
            for event in page["events"][:left]:
                write((compact(event) if out.as_json else _line(event)).encode() + b"\n")
            sys.stdout.flush()
            left = None if left is None else left - len(page["events"])
            start = page["next"]


def _check_kinds(given: str | None) -> None:
    from penstock.journal.events import Kind

    known = [kind.name.lower() for kind in Kind]
    for each in [] if given is None else given.split(","):
        if each not in known:
            raise click.UsageError(f"--kind: expected one of {', '.join(known)}, got {each!r}")


def _line(event: Data) -> str:
    parts = [when(event["at"]), f"{event['kind']:<9}", event["queue"]]
    if event.get("id"):
        parts.append(f"#{event['id']}")
    if event.get("attempts"):
        parts.append(f"attempt {event['attempts']}")
    parts += event.get("marks", [])
    parts += [f"{name}={_short(value)}" for name, value in event.get("details", {}).items()]
    if "payload" in event:
        parts.append(_short(event["payload"]))
    return "  ".join(parts)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else compact(value)
    return text if len(text) <= 120 else text[:119] + "…"
