"""What commands share: how to reach the queues, `--json`, names, ids, and errors as exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli.output import Output
from penstock.errors import BatchTooLarge, InvalidInput, PayloadTooLarge, PenstockError, UnknownQueue

if TYPE_CHECKING:
    from penstock.cli.backend import Backend
    from penstock.cli.local import LocalBackend
    from penstock.cli.remote import RemoteBackend
    from penstock.cli.stream_backend import StreamBackend

DEFAULT_URL = "http://127.0.0.1:8888"
DB_NAME = "penstock.db"
SETTINGS = {"AUTH_TOKEN", "HOST", "LISTEN_ADDR", "PORT"}
"""Of a server, by the names that earlier queues used."""
WRONG, PARTLY, NOT_AUTHORISED, NOT_REACHABLE = 2, 3, 4, 5

Command = Callable[..., None]
Options = list[Callable[[Command], Command]]


class QueueName(click.ParamType[str]):
    name = "queue"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.isascii() and value.isalnum() and len(value) <= 255:
            return value  # As most are: no need to load what knows the rest.
        from penstock.core.ids import check_queue_name

        try:
            return check_queue_name(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


QUEUE = QueueName()


class QueueOption(click.Option):
    """An option for a queue's name that may also be given bare: `queue add emails` is `queue add --name emails`."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        # Eager: it takes the bare name before click refuses it.
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


URL = click.option("--url", help=f"The server.  [env: PENSTOCK_URL; default: {DEFAULT_URL}]")
TOKEN = click.option("--token", help="Its admin token or an API key.  [env: PENSTOCK_TOKEN]")
DB = click.option("--db", type=click.Path(dir_okay=False), help="A queue's file, used without a server.")
DATA = click.option("--data", type=click.Path(file_okay=False), help="A server's folder, used without it.")
STORE = click.option("--store", help="A database, used without a server: postgresql://user@host/database.")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON, stable, instead of a table.")
NAME = click.option("--name", cls=QueueOption, required=True, help="The queue: a name, or namespace/task/queue.")
YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


class CommandFailed(click.ClickException):
    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def on_queues(*, create: bool = False) -> Callable[[Command], Command]:
    """A command that is given a back end and an output. With `create`, a missing file is made."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(as_json: bool, **rest: Any) -> None:
            with reporting(), closing(open_backend(*address(rest), create=create)) as backend:
                command(backend, Output(as_json), **rest)

        return with_options(run, [URL, TOKEN, DB, DATA, JSON])

    return decorate


def on_streams(*, create: bool = False) -> Callable[[Command], Command]:
    """A command that is given a back end of streams and an output. With `create`, a missing folder is made."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(as_json: bool, **rest: Any) -> None:
            store = rest.pop("store")
            with reporting(), closing(open_streams(*address(rest), store, create=create)) as backend:
                command(backend, Output(as_json), **rest)

        return with_options(run, [URL, TOKEN, DB, DATA, STORE, JSON])

    return decorate


def on_server(command: Command) -> Command:
    """A command that only a server can answer."""

    @wraps(command)
    def run(as_json: bool, **rest: Any) -> None:
        url, token, db, data = address(rest)
        name = click.get_current_context().info_name
        if db is not None or data is not None:
            raise click.UsageError(f"{name} is asked of a server; for a file there is `penstock doctor FILE`")
        with reporting(), closing(open_remote(url, token)) as backend:
            command(backend, Output(as_json), **rest)

    return with_options(run, [URL, TOKEN, DB, DATA, JSON])


def with_options(command: Command, options: Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def address(given: dict[str, Any]) -> tuple[str | None, str | None, str | None, str | None]:
    """What says where the queues are, taken out of a command's arguments."""
    return given.pop("url"), given.pop("token"), given.pop("db"), given.pop("data")


def open_backend(url: str | None, token: str | None, db: str | None, data: str | None, *, create: bool) -> Backend:
    path = file_of(db, data)
    if path is None:
        return open_remote(url, token)
    if url is not None:
        raise click.UsageError("--url is a server and --db or --data a file: name one of them")
    return open_file(path, create=create)


def open_streams(
    url: str | None, token: str | None, db: str | None, data: str | None, store: str | None, *, create: bool
) -> StreamBackend:
    where = where_of(url, db, data, store)
    if where is None:
        from penstock.cli.stream_remote import RemoteStreamBackend

        return RemoteStreamBackend(*server_of(url, token))
    from penstock.cli.stream_local import LocalStreamBackend

    return LocalStreamBackend(where, create=create)


def where_of(url: str | None, db: str | None, data: str | None, store: str | None) -> str | None:
    """A file's path or a database's URL, for those who need no server; None if a server is asked."""
    path = file_of(db, data)
    if path is not None and store is not None:
        raise click.UsageError("--store is a database and --db or --data a file: name one of them")
    if url is not None and (path is not None or store is not None):
        raise click.UsageError("--url is a server and --db, --data or --store is not: name one of them")
    if store is None:
        return None if path is None else str(path)
    if not store.startswith(("postgresql://", "postgres://")):
        raise click.UsageError("--store is postgresql://user@host/database; for a file there is --db")
    return store


def file_of(db: str | None, data: str | None) -> Path | None:
    if db is not None and data is not None:
        raise click.UsageError("--db is a file and --data a server's folder: name one of them")
    if db is not None:
        return Path(db)
    return None if data is None else Path(data) / DB_NAME


def open_file(path: Path, *, create: bool) -> LocalBackend:
    from penstock.cli.local import LocalBackend

    return LocalBackend(path, create=create)


def open_remote(url: str | None, token: str | None) -> RemoteBackend:
    from penstock.cli.remote import RemoteBackend

    return RemoteBackend(*server_of(url, token))


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
    # Without the clients' token, which a server takes for its own where it has no other.
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
    """Turns what goes wrong into one line and an exit code."""
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
            f"unexpected {what} (is that a Penstock server? PENSTOCK_DEBUG=1 shows where it was)"
        ) from None


def fail(error: PenstockError, *, context: str = "", code: int | None = None) -> NoReturn:
    text = str(error.args[0])
    field = getattr(error, "field", None)
    if field:  # A path such as messages[0].priority: the user knows only the option.
        text = text.replace(f"{field}: ", f"{field.rpartition('.')[2]}: ", 1)
    text = f"{context}{text}"
    hint = error.hint
    if isinstance(error, UnknownQueue) or error.code == "unknown_queue":
        hint = "`penstock queue list` shows those there are, `penstock queue add` makes one"
    elif error.code == "unknown_stream":
        hint = "`penstock stream list` shows those there are, `penstock stream create` makes one"
    elif error.code == "stream_in_use":
        hint = "`penstock stream consumers` shows them; --force passes over them"
    elif error.code == "queue_not_empty":
        hint = "purge it, or use --force"
    elif error.code == "queue_exists":
        hint = "`penstock queue set` changes its options"
    raise CommandFailed(f"{text} ({hint})" if hint else text, exit_code(error) if code is None else code) from None


def exit_code(error: PenstockError) -> int:
    status = getattr(error, "status", None)
    if error.code == "unreachable":
        return NOT_REACHABLE
    if status in (401, 403):
        return NOT_AUTHORISED
    if isinstance(error, PayloadTooLarge | BatchTooLarge):
        return 1
    return WRONG if status in (400, 422) or isinstance(error, InvalidInput) else 1


def exit_partly(done: int, asked: int, text: str) -> None:
    """After some of several things could not be done."""
    if done < asked:
        raise CommandFailed(text, PARTLY if done else 1)


class Leases(click.ParamType[list[dict[str, Any]]]):
    """Ids or id:token, between commas; `-` reads them from stdin."""

    name = "id[:token],…"

    def __init__(self, *, tokens: bool = True) -> None:
        self._tokens = tokens

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[dict[str, Any]]:
        text = sys.stdin.buffer.read().decode(errors="replace") if value == "-" else value
        items = []
        for part in text.replace(",", " ").split():
            number, colon, token = part.partition(":")
            if not number.isascii() or not number.isdigit() or not 0 < int(number[:20]) <= 1 << 44:
                self.fail(f"{part!r} does not begin with a message id, a whole number", param, ctx)
            if colon and not (self._tokens and token):
                self.fail(f"{part!r} is not {'id:token' if self._tokens else 'an id'}", param, ctx)
            items.append({"id": int(number), "token": token or None})
        if not items:
            self.fail("no id is given", param, ctx)
        return items
