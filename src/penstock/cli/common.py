"""Shared parts of the commands: options, clients, parameter types, and errors as exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

import click
import msgspec

from penstock.cli.output import Data, Output
from penstock.errors import (
    AccessDenied,
    BatchTooLarge,
    CannotOpen,
    InvalidInput,
    PayloadTooLarge,
    PenstockError,
    ServerFault,
    Unauthorized,
    UnknownQueue,
    Unreachable,
)

if TYPE_CHECKING:
    from penstock.client._sync.client import Client
    from penstock.client._sync.http_session import Session
    from penstock.client._sync.http_streams import HttpStreams
    from penstock.client._sync.store_streams import StoreStreams
    from penstock.client.types import Page

    Streams = HttpStreams | StoreStreams

DEFAULT_URL = "http://127.0.0.1:8888"
DB_NAME = "penstock.db"
# Environment variables of the server that have no PENSTOCK_ prefix.
SETTINGS = {"AUTH_TOKEN", "HOST", "LISTEN_ADDR", "PORT"}
WRONG, PARTLY, NOT_AUTHORISED, NOT_REACHABLE = 2, 3, 4, 5
CONNECT_SECONDS = 5.0
TIMEOUT_SECONDS = 60.0
# For what a server may take long to do.
LONG_SECONDS = 3_600.0
PAGE = 1_000

T = TypeVar("T")
DATA_DECODER = msgspec.json.Decoder(Data)

Command = Callable[..., None]
Options = list[Callable[[Command], Command]]


class QueueName(click.ParamType[str]):
    name = "queue"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.isascii() and value.isalnum() and len(value) <= 255:
            return value  # Most names end here, so the full check need not be imported.
        from penstock.core.ids import check_queue_name

        try:
            return check_queue_name(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


QUEUE = QueueName()


class QueueOption(click.Option):
    """A queue name given as an option or as an argument: `queue create emails` is `queue create --name emails`."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        # Eager, to take the argument before click refuses it as unexpected.
        super().__init__(*names, **{"type": QUEUE, "is_eager": True, **attributes})

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        assert self.name is not None
        if self.name not in opts and args:
            opts, args = {**opts, self.name: args[0]}, args[1:]
        return super().handle_parse_result(ctx, opts, args)

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["QUEUE" if self.required else "[QUEUE]"]


URL = click.option("--url", help=f"Server to use.  [env: PENSTOCK_URL; default: {DEFAULT_URL}]")
TOKEN = click.option("--token", help="Admin token or API key for the server.  [env: PENSTOCK_TOKEN]")
DB = click.option("--db", type=click.Path(dir_okay=False), help="Queue file to use directly, without a server.")
DATA = click.option("--data", type=click.Path(file_okay=False), help="Server's data folder to use directly.")
STORE = click.option("--store", help="Database to use directly: postgresql://user@host/database.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
NAME = click.option("--name", cls=QueueOption, required=True, help="Queue name, or namespace/task/queue.")
YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


class CommandFailed(click.ClickException):
    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def on_queues(*, create: bool = False, timeout: float = TIMEOUT_SECONDS) -> Callable[[Command], Command]:
    """Pass a client and an output to a command. With `create`, create a missing file."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(as_json: bool, **rest: Any) -> None:
            with reporting(), closing(open_client(*address(rest), create=create, timeout=timeout)) as client:
                command(client, Output(as_json), **rest)

        return with_options(run, [URL, TOKEN, DB, DATA, JSON])

    return decorate


def on_streams(*, create: bool = False, timeout: float = TIMEOUT_SECONDS) -> Callable[[Command], Command]:
    """Pass the streams of a client and an output to a command. With `create`, create a missing folder."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(as_json: bool, **rest: Any) -> None:
            store = rest.pop("store")
            with reporting(), open_streams(*address(rest), store, create=create, timeout=timeout) as streams:
                command(streams, Output(as_json), **rest)

        return with_options(run, [URL, TOKEN, DB, DATA, STORE, JSON])

    return decorate


def on_server(command: Command) -> Command:
    """Pass a session with a server and an output to a command that needs a server."""

    @wraps(command)
    def run(as_json: bool, **rest: Any) -> None:
        url, token, db, data = address(rest)
        name = click.get_current_context().info_name
        if db is not None or data is not None:
            raise click.UsageError(f"{name} needs a server; `penstock doctor FILE` checks a file")
        with reporting(), closing(open_server(url, token)) as client:
            assert client.transport.kind == "server"
            command(client.transport.session, Output(as_json), **rest)

    return with_options(run, [URL, TOKEN, DB, DATA, JSON])


def with_options(command: Command, options: Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def address(given: dict[str, Any]) -> tuple[str | None, str | None, str | None, str | None]:
    """Remove the options that say where the queues are from a command's arguments, and return them."""
    return given.pop("url"), given.pop("token"), given.pop("db"), given.pop("data")


def open_client(
    url: str | None, token: str | None, db: str | None, data: str | None, *, create: bool, timeout: float
) -> Client:
    path = file_of(db, data)
    if path is None:
        return open_server(url, token, timeout)
    if url is not None:
        raise click.UsageError("--url excludes --db and --data: give a server or a file")
    return open_file(path, create=create)


@contextmanager
def open_streams(
    url: str | None,
    token: str | None,
    db: str | None,
    data: str | None,
    store: str | None,
    *,
    create: bool,
    timeout: float,
) -> Iterator[Streams]:
    """Open streams. A server may have the files open at the same time, but only one process can append."""
    where = where_of(url, db, data, store)
    if where is None:
        with closing(open_server(url, token, timeout)) as client:
            yield client.transport.streams
        return
    from penstock.client._sync.store_streams import StoreStreams
    from penstock.log.streams import streams_beside

    folder = streams_beside(where)
    if not create and store is None and not folder.is_dir():
        raise CannotOpen(
            f"there are no streams in {folder}", hint="create one with `penstock stream create` and the same option"
        )
    with closing(StoreStreams(where, retry_for=0)) as streams:
        yield streams


def where_of(url: str | None, db: str | None, data: str | None, store: str | None) -> str | None:
    """Return the path of a file or the URL of a database to use directly; None for a server."""
    path = file_of(db, data)
    if path is not None and store is not None:
        raise click.UsageError("--store excludes --db and --data: give a database or a file")
    if url is not None and (path is not None or store is not None):
        raise click.UsageError("--url excludes --db, --data and --store: give a server, a file or a database")
    if store is None:
        return None if path is None else str(path)
    if not store.startswith(("postgresql://", "postgres://")):
        raise click.UsageError("--store must be postgresql://user@host/database; use --db for a file")
    return store


def file_of(db: str | None, data: str | None) -> Path | None:
    if db is not None and data is not None:
        raise click.UsageError("--db excludes --data: give a file or a server's data folder")
    if db is not None:
        return Path(db)
    return None if data is None else Path(data) / DB_NAME


def open_file(path: Path, *, create: bool) -> Client:
    """Open a queue file. A running server may use it at the same time."""
    from penstock.client._sync.client import connect

    if create:
        from penstock.log.files import make_folder

        make_folder(path.parent)
    else:
        check_file(path)
    return connect(f"sqlite:///{path}", retry_for=0)


def check_file(path: Path) -> None:
    """Raise unless the path is a queue file."""
    from penstock.store.sqlite.probe import check_penstock_database

    if not path.is_file():
        raise CannotOpen(f"{path} does not exist", hint="create it with `penstock queue create` and the same option")
    check_penstock_database(path)


def open_server(url: str | None, token: str | None, timeout: float = TIMEOUT_SECONDS) -> Client:
    """Connect to a server, without retries: a command reports a failure at once."""
    from penstock.client._sync.client import connect

    url, token = server_of(url, token)
    if not url.lower().startswith(("http://", "https://")):
        from penstock.core.redact import without_password

        raise InvalidInput(f"{without_password(url)!r} is not a server URL", field="url", hint="use http://host:port")
    if "@" in url:
        raise InvalidInput(
            "a server URL cannot contain a user or password", field="url", hint="give a token in PENSTOCK_TOKEN"
        )
    return connect(url, token=token or None, timeout=timeout, connect_timeout=CONNECT_SECONDS, retry_for=0)


def call(session: Session, method: str, path: str, body: Any = None, **how: Any) -> Data:
    """Call a part of the server's API that only operators need, so that the SDK has no method for it."""
    return session.get(DATA_DECODER, method, path, body, **how)


def queue_path(name: str) -> str:
    return "/queues/" + quote(name, safe="")


def stream_path(name: str) -> str:
    return "/streams/" + quote(name, safe="")


def every(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """Yield the items of all pages; `read` gets the `next` of the page before."""
    after = None
    while True:
        page = read(after)
        yield from page
        if page.next is None:
            return
        after = page.next


def server_of(url: str | None, token: str | None) -> tuple[str, str | None]:
    """Return a server's URL and the token for it: flag over environment over configuration file over default.

    A token goes only where the user sends it: the file's token to the file's URL, and the environment's never to
    another machine that only a `penstock.toml` in the current folder names.
    """
    url = url or os.environ.get("PENSTOCK_URL")
    environment_token = os.environ.get("PENSTOCK_TOKEN")
    if url is not None and (token or environment_token):
        return url, token or environment_token
    found, file_token = _configured(url)
    if token or environment_token is None:
        return found, token or file_token
    if _is_local(found) or "PENSTOCK_CONFIG" in os.environ or not Path("penstock.toml").exists():
        return found, environment_token
    if file_token is None:
        raise InvalidInput(
            f"PENSTOCK_TOKEN is not sent to {found}, which only penstock.toml in this folder names",
            field="token",
            hint="set PENSTOCK_URL too, or use --url",
        )
    return found, file_token


def _configured(url: str | None) -> tuple[str, str | None]:
    """Return the URL, or the one that is configured, and the token that is configured for it."""
    configured = url is None and any(name in SETTINGS or name.startswith("PENSTOCK_") for name in os.environ)
    if not configured and "PENSTOCK_CONFIG" not in os.environ and not Path("penstock.toml").exists():
        return url or DEFAULT_URL, None
    from penstock.config import client_settings, load_settings

    file = client_settings()
    token = file.get("token") if url is None or url == file.get("url") else None
    url = url or file.get("url")
    if url is not None:
        return url, token
    # Leave out PENSTOCK_TOKEN, the clients' token: the server settings fall back to it as the admin token.
    settings = load_settings({}, {name: value for name, value in os.environ.items() if name != "PENSTOCK_TOKEN"})
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{shown}:{settings.port or 8888}", token or settings.auth_token


def _is_local(url: str) -> bool:
    import ipaddress
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


@contextmanager
def reporting() -> Iterator[None]:
    """Turn exceptions into one line on stderr and an exit code."""
    try:
        yield
    except PenstockError as error:
        fail(error)
    except UnicodeError:
        raise click.UsageError("an argument is not valid UTF-8") from None
    except (click.ClickException, click.exceptions.Exit, click.exceptions.Abort, OSError):
        raise
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        raise CommandFailed(
            f"unexpected {what} (is that a Penstock server? PENSTOCK_DEBUG=1 shows the traceback)"
        ) from None


def fail(error: PenstockError, *, context: str = "", code: int | None = None) -> NoReturn:
    text = str(error.args[0])
    field = getattr(error, "field", None)
    if field:  # Of a path such as messages[0].priority, the user knows only the option.
        text = text.replace(f"{field}: ", f"{field.rpartition('.')[2]}: ", 1)
    text = f"{context}{text}"
    hint = error.hint
    if isinstance(error, UnknownQueue) or error.code == "unknown_queue":
        hint = "list queues with `penstock queue list`, create one with `penstock queue create`"
    elif error.code == "unknown_stream":
        hint = "list streams with `penstock stream list`, create one with `penstock stream create`"
    elif error.code == "stream_in_use":
        hint = "list its consumers with `penstock stream consumers`, or use --force"
    elif error.code == "queue_not_empty":
        hint = "purge it, or use --force"
    elif error.code == "queue_exists":
        hint = "change its options with `penstock queue update`"
    elif isinstance(error, Unauthorized):
        hint = "set --token or PENSTOCK_TOKEN"
    elif isinstance(error, Unreachable):
        where, _, reason = text.partition(" is unreachable: ")
        reason = re.sub(r"^no connection: (\[.*?\] )?", "", reason)
        text = f"cannot reach {where}: {reason}"
        hint = "is `penstock serve` running? use --db PATH to work without a server"
    raise CommandFailed(f"{text} ({hint})" if hint else text, exit_code(error) if code is None else code) from None


def exit_code(error: PenstockError) -> int:
    status = getattr(error, "status", None)
    if error.code == "unreachable" or (isinstance(error, ServerFault) and error.status < 400):
        return NOT_REACHABLE
    if status in (401, 403) or isinstance(error, AccessDenied):
        return NOT_AUTHORISED
    if isinstance(error, PayloadTooLarge | BatchTooLarge):
        return 1
    return WRONG if status in (400, 422) or isinstance(error, InvalidInput) else 1


def exit_partly(done: int, total: int, text: str) -> None:
    """Fail with `text` unless everything was done; the exit code says whether anything was."""
    if done < total:
        raise CommandFailed(text, PARTLY if done else 1)


class Leases(click.ParamType[list[dict[str, Any]]]):
    """Comma-separated ids or id:token pairs; `-` reads them from stdin."""

    name = "id[:token],…"

    def __init__(self, *, tokens: bool = True) -> None:
        self._tokens = tokens

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[dict[str, Any]]:
        text = sys.stdin.buffer.read().decode(errors="replace") if value == "-" else value
        items = []
        for part in text.replace(",", " ").split():
            number, colon, token = part.partition(":")
            if not number.isascii() or not number.isdigit() or not 0 < int(number[:20]) <= 1 << 44:
                self.fail(f"{part!r} does not start with a message id (a whole number)", param, ctx)
            if colon and not (self._tokens and token):
                self.fail(f"{part!r} is not {'id:token' if self._tokens else 'an id'}", param, ctx)
            items.append({"id": int(number), "token": token or None})
        if not items:
            self.fail("expected at least one id", param, ctx)
        return items
