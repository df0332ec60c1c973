"""`penstock import`"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import click
import msgspec

from penstock.cli.common import PARTLY, WRONG, QueueOption, call, exit_code, fail, on_queues, queue_path
from penstock.cli.output import Data, Output, progress
from penstock.client._sync.client import Client
from penstock.core.model import State
from penstock.errors import InvalidInput, PenstockError
from penstock.wire.new_messages import check_imported, imported
from penstock.wire.queues import ImportedMessage

BATCH_LINES = 1_000
BATCH_BYTES = 4 << 20
_message = msgspec.json.Decoder(ImportedMessage)


@click.command("import")
@click.option("--queue", cls=QueueOption, required=True, help="Queue name; the queue must exist.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    help="NDJSON file written by `penstock export`.  [default: stdin]",
)
@on_queues()
def command(client: Client, out: Output, queue: str, file: str) -> None:
    """Import messages from an export; messages that the queue holds already are not added twice.

    JSON: {"imported", "duplicates", "skipped"}; messages that were acknowledged are skipped.
    """
    done: Data = {"imported": 0, "duplicates": 0, "skipped": 0}
    path = None if file == "-" else Path(file)
    size = path.stat().st_size if path is not None and path.is_file() else None
    first = 1
    with (
        nullcontext(sys.stdin.buffer) if path is None else path.open("rb") as source,
        progress(f"import {queue} (bytes)", size) as advance,
    ):
        while lines := source.readlines(BATCH_BYTES):
            for start in range(0, len(lines), BATCH_LINES):
                part = lines[start : start + BATCH_LINES]
                _import(client, queue, part, first, done)
                first += len(part)
                advance(sum(map(len, part)))
    out.show(done, lambda: out.fields(done))


def _import(client: Client, queue: str, lines: list[bytes], first: int, done: Data) -> None:
    try:
        answer = _import_lines(client, queue, lines)
    except PenstockError as error:
        some = sum(done.values())
        if some:
            error.hint = f"{some} messages before it are imported; run the same command again to continue"
        fail(error, context=_find_line(error, lines, first), code=PARTLY if some else None)
    for name in done:
        done[name] += answer[name]


def _import_lines(client: Client, queue: str, lines: list[bytes]) -> Data:
    transport = client.transport
    if transport.kind == "server":
        how = {"queue": queue, "content_type": b"application/x-ndjson", "repeatable": False}
        return call(transport.session, "POST", f"{queue_path(queue)}/import", b"".join(lines), **how)
    transport.info(queue)  # Raises UnknownQueue.
    broker = transport.broker
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_message.decode(line))
            except msgspec.DecodeError as error:
                raise InvalidInput(f"line {number} is not an exported message: {error}") from None
    work = [message for message in found if message.state != State.ARCHIVED]
    held = broker.held(queue, [message.uuid for message in work if message.uuid])
    messages = [imported(message) for message in work if message.uuid not in held]
    check_imported(broker.find_secret(queue), messages)
    added = sum(not receipt.duplicate for receipt in broker.push(queue, messages)) if messages else 0
    return {"imported": added, "duplicates": len(work) - added, "skipped": len(found) - len(work)}


def _find_line(error: PenstockError, lines: list[bytes], first: int) -> str:
    """Say which line of the file is wrong.

    An import numbers lines from the start of its request, or fails without a line number.
    """
    numbered = re.match(r"line (\d+)", str(error.args[0]))
    if numbered is not None:
        error.args = (f"line {first + int(numbered[1]) - 1}{str(error.args[0])[numbered.end() :]}",)
        return ""
    for number, line in enumerate(lines, first) if exit_code(error) == WRONG else ():
        if line.strip() and not _is_message(line):
            return f"line {number}: "
    return f"lines {first} to {first + len(lines) - 1}: "


def _is_message(line: bytes) -> bool:
    try:
        imported(_message.decode(line))
    except (msgspec.DecodeError, PenstockError):
        return False
    return True
