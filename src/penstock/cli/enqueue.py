"""`penstock message enqueue`: push one payload, or a file of them that can be resumed after an interruption."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import click
import msgspec

from penstock.cli.common import PARTLY, CommandFailed, QueueOption, fail, on_queues, queue_path
from penstock.cli.lines import STDIN, BadLine, InputLines
from penstock.cli.output import Data, Output, note, progress
from penstock.client._sync.client import Client
from penstock.errors import PenstockError, TryLater, Unreachable
from penstock.wire.queues import PushedMany, PushOne

BATCH_BYTES = 4 << 20
RETRY_SECONDS = 60.0


class Outgoing(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A message to push; also the format of a line with `--envelope`."""

    payload: msgspec.Raw
    encoding: Literal["base64"] | None = None
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None
    signature: str | None = None


_envelope = msgspec.json.Decoder(Outgoing)
_pushed = msgspec.json.Decoder(PushedMany)


@click.command("enqueue")
@click.option("--queue", cls=QueueOption, required=True, help="Queue name.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="NDJSON file, one payload per line; - reads stdin.",
)
@click.option("--payload", help="A payload, as JSON; - reads stdin.")
@click.option("--idempotency-key", help="Key of the payload; each line of a file gets this key and its line number.")
@click.option("--envelope", is_flag=True, help='Lines are {"payload", "priority"?, "delay_ms"?, "headers"?, …}.')
@click.option("--priority", type=int, default=0, help="Higher is leased first.")
@click.option("--delay-ms", type=click.IntRange(0), help="Delay before the message can be leased.")
@click.option("--ttl-ms", type=click.IntRange(1), help="Drop the message if it is older than this.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message; repeatable.")
@click.option("--secret", help="Sign each payload with the queue's secret.  [env: PENSTOCK_SECRET]")
@click.option("--again", is_flag=True, help="Push the lines even if this file was enqueued before.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Lines per commit.")
@on_queues()
def command(
    client: Client,
    out: Output,
    queue: str,
    file: str | None,
    payload: str | None,
    idempotency_key: str | None,
    envelope: bool,
    secret: str | None,
    again: bool,
    batch: int,
    headers: Sequence[str],
    **common: Any,
) -> None:
    """Push one payload, or each line of an NDJSON file.

    Lines of a file get idempotency keys derived from its content. After an interruption, run the same command again:
    it continues where it stopped and adds nothing twice, for as long as the queue remembers keys (a day by default).

    JSON: {"added", "duplicates"}, with --payload also {"message_id", "duplicate"}.
    """
    if file is None and payload is None:
        raise click.UsageError("give --payload or --file")
    if file == payload == STDIN:
        raise click.UsageError("only one of --file and --payload can read stdin")
    common["headers"] = _headers(headers)
    "".join((*headers, idempotency_key or "")).encode()  # Fails early on arguments that are not valid UTF-8.
    secret = secret or os.environ.get("PENSTOCK_SECRET")
    done: Data = {"added": 0, "duplicates": 0}
    if payload is not None:
        raw = sys.stdin.buffer.read() if payload == STDIN else payload.encode()
        message = Outgoing(payload=_payload(raw), idempotency_key=idempotency_key, **common)
        _push(client, queue, [message], secret, done)
        done |= {"message_id": done["last_id"], "duplicate": done["duplicates"] == 1}
    if file is not None:
        try:
            lines = MessageLines(file, idempotency_key, envelope, common, keyed=not again)
        except BadLine as error:
            raise CommandFailed(f"{error} (nothing was enqueued)") from None
        _push_lines(client, queue, lines, batch, secret, done)
    done.pop("last_id", None)
    out.show(done, lambda: out.fields(done))
    if file is not None and done["duplicates"] and not out.as_json:
        note(f"{done['duplicates']} lines were enqueued before; --again pushes them once more")


def _headers(given: Sequence[str]) -> dict[str, str] | None:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header: expected NAME=VALUE, got {text!r}")
        headers[name] = value
    return headers or None


def _payload(raw: bytes) -> msgspec.Raw:
    from penstock.wire.strict_json import check_json

    text = raw.strip()
    try:
        check_json(text)
    except PenstockError as error:
        reason = str(error.args[0]).replace("the body", "it")
        raise click.UsageError(f"--payload: {reason}; a JSON string needs double quotes") from None
    return msgspec.Raw(text)


class MessageLines(InputLines):
    """Reads lines as messages."""

    def __init__(self, name: str, key: str | None, envelope: bool, common: Data, *, keyed: bool) -> None:
        super().__init__(name)
        self.key = key
        self._envelope = envelope
        self._common = common
        # The lines of a pipe have keys only if the user gives one.
        content_key = self.check_all(lambda number, line: line.strip() and self._message(number, line.strip()))
        if keyed:
            self.key = key or content_key

    def __iter__(self) -> Iterator[tuple[int, int, Outgoing]]:
        """Yield (line number, bytes, message)."""
        for number, line in self.read():
            text = line.strip()
            if text:
                yield number, len(text), self._message(number, text)

    def _message(self, number: int, text: bytes) -> Outgoing:
        from penstock.wire.strict_json import check_json

        key = f"{self.key}:{number}" if self.key else None
        try:
            if self.total is None:
                check_json(text)
            if not self._envelope:
                return Outgoing(payload=msgspec.Raw(text), idempotency_key=key, **self._common)
            message = _envelope.decode(text)
        except PenstockError as error:
            raise self.bad(number, str(error.args[0])) from None
        except msgspec.DecodeError as error:
            raise self.bad(number, f"{str(error)[0].lower()}{str(error)[1:]}") from None
        message.idempotency_key = message.idempotency_key or key
        for name, value in self._common.items():
            if getattr(message, name) in (None, 0):
                setattr(message, name, value)
        return message


def _push_lines(client: Client, queue: str, lines: MessageLines, batch: int, secret: str | None, done: Data) -> None:
    waiting: list[Outgoing] = []
    first = number = size = 0
    with progress(f"enqueue {lines.name}", lines.total) as advance:
        try:
            for number, length, message in lines:
                first = first or number
                waiting.append(message)
                size += length
                if len(waiting) >= batch or size >= BATCH_BYTES:
                    _push(client, queue, waiting, secret, done)
                    advance(number - first + 1)
                    waiting.clear()
                    first = size = 0
            if waiting:
                _push(client, queue, waiting, secret, done)
        except BadLine as error:
            # Only a pipe gets here: a file is checked before the first push.
            if waiting:
                _push(client, queue, waiting, secret, done)
            raise CommandFailed(f"{error} ({_so_far(lines, done)})", PARTLY if _some(done) else 1) from None
        except PenstockError as error:
            if _some(done):
                error.hint = _so_far(lines, done)
            fail(
                error,
                context=f"lines {first} to {number} of {lines.name}: ",
                code=PARTLY if _some(done) else None,
            )
        except KeyboardInterrupt:
            note(_so_far(lines, done))
            raise


def _some(done: Data) -> int:
    return int(done["added"] + done["duplicates"])


def _so_far(lines: MessageLines, done: Data) -> str:
    """Describe what was done before the command ended, and how to continue."""
    hint = "run the same command again to continue"
    if lines.key is None:
        hint = "a second run would push them again, because there is no --idempotency-key"
    elif lines.key.startswith("file:"):
        hint += f"; if you change the file, add --idempotency-key {lines.key}"
    return f"{_some(done)} lines are enqueued; {hint}"


def _push(client: Client, queue: str, messages: Sequence[Outgoing], secret: str | None, done: Data) -> None:
    if secret is not None:
        for message in messages:
            message.signature = _sign(secret, message)
    try:
        pushed = _retry_while_busy(lambda: _send(client, queue, messages))
    except PenstockError as error:
        if error.code not in ("body_too_large", "batch_too_large") or len(messages) == 1:
            raise
        middle = len(messages) // 2
        _push(client, queue, messages[:middle], secret, done)
        _push(client, queue, messages[middle:], secret, done)
        return
    again = len(pushed.duplicates)
    done["added"] += len(messages) - again
    done["duplicates"] += again
    done["last_id"] = pushed.message_ids[-1]


def _send(client: Client, queue: str, messages: Sequence[Outgoing]) -> PushedMany:
    """Push with signatures, which the SDK has no parameter for."""
    transport = client.transport
    if transport.kind == "store":
        from penstock.wire.new_messages import new_message
        from penstock.wire.queue_views import pushed_many

        sent = [PushOne(**msgspec.structs.asdict(message)) for message in messages]
        secret = transport.broker.find_secret(queue)
        return pushed_many(transport.broker.push(queue, [new_message(each, secret) for each in sent]))
    path, body = f"{queue_path(queue)}/messages", {"messages": messages}
    try:
        return transport.session.get(_pushed, "POST", path, body, queue=queue)
    except Unreachable:
        # Only messages with idempotency keys can be sent again safely.
        if not all(message.idempotency_key for message in messages):
            raise
        return transport.session.get(_pushed, "POST", path, body, queue=queue)


def _retry_while_busy(push: Callable[[], PushedMany]) -> PushedMany:
    """Push, retrying for a while if the queue is full or rate-limited."""
    deadline = time.monotonic() + RETRY_SECONDS
    has_noted = False
    while True:
        try:
            return push()
        except TryLater as error:
            wait = error.retry_after_ms / 1000
            if time.monotonic() + wait > deadline:
                raise
            if not has_noted:
                note(f"waiting: {error.args[0]}")
                has_noted = True
        time.sleep(wait)


def _sign(secret: str, message: Outgoing) -> str:
    from penstock.wire.payloads import read
    from penstock.wire.signatures import sign

    return sign(secret, read(message.payload, message.encoding)[0])
