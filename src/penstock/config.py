"""Settings of a server: flag over `PENSTOCK_<NAME>` over the plain name, where there is one (`PORT`, `DB_PATH`, …),
over configuration file over default.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from penstock.core.ids import own_name
from penstock.core.validation import to_invalid_input
from penstock.errors import InvalidInput

Count = Annotated[int, Meta(ge=1, le=1 << 40)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    """The address to listen on; beyond this machine only with a token."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8888
    """0 picks a free one."""
    data: str = "./penstock-data"
    """The folder for everything on disk. It holds the store, unless `db` or `store` names another."""
    db: str | None = None
    """A SQLite file elsewhere than in the data folder."""
    store: str | None = None
    """A database instead of a file: sqlite:///path or postgresql://…"""
    lake: str | None = None
    """The tables that `penstock pipeline` keeps, for analytics of times long past; by default beside the file, or in
    the data folder."""
    pool_size: Annotated[int, Meta(ge=2, le=1_000)] | None = None
    """Connections to a PostgreSQL; by default as many as are of use."""
    auth_token: str | None = None
    """The admin token: all that ask must send it, or a key of a queue."""
    read_token: str | None = None
    """Lets its bearer look at everything and change nothing."""
    dashboard: bool = True
    """Serve the dashboard at /."""
    insecure: bool = False
    """Listen beyond this machine without a token."""
    tls_cert: str | None = None
    """A certificate (PEM), to speak HTTPS."""
    tls_key: str | None = None
    """Its key."""
    durability: Literal["full", "relaxed"] = "full"
    """Answer when it is on disk, or before."""
    journal: bool = True
    """Keep a journal of all that happens, for live events and for Spark, beside the file or in the database."""
    cors_origins: list[str] = []
    """Web pages that may use this server, by origin."""
    payload_bytes: Count = 512 << 10
    """The largest message."""
    request_bytes: Count = 16 << 20
    """The largest request."""
    get_limit_default: Count = 1
    """Messages that a GET of the inbox takes when it does not say."""
    get_limit_max: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """And at most."""
    batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """Messages in one request."""
    wait_ms_default: Annotated[int, Meta(ge=0, le=600_000)] = 20_000
    """How long a poll waits when it does not say."""
    wait_ms_max: Annotated[int, Meta(ge=0, le=600_000)] = 60_000
    """And at most."""
    polls_max: Count = 20_000
    """Polls that may wait at once."""
    tree_timeout_ms: Annotated[int, Meta(ge=0, le=600_000)] = 30_000
    """How long a pop of the tree face waits when it does not say."""
    tree_batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Messages in one pop of the tree face."""
    worker_id: Annotated[str, Meta(min_length=1, max_length=255)] = msgspec.field(default_factory=own_name)
    """What this server is called where it hands out messages for consumers that give no name."""
    worker_heartbeat_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 10_000
    """Time between heartbeats, by which servers and named consumers are known to be there."""
    worker_stale_ms: Annotated[int, Meta(ge=200, le=86_400_000)] = 30_000
    """After how long without one they are taken off the list."""
    connections_max: Count = 20_000
    """Connections that may be open at once."""
    commit_queue_max: Count = 20_000
    """Commands that may wait for a commit; more are told to come later."""
    wal_bytes_max: Count = 1 << 30
    """Pushes are told to come later while SQLite's write-ahead log is larger."""
    busy_ms: Annotated[int, Meta(ge=0, le=600_000)] = 5_000
    """How long a commit waits for another process that holds the store."""
    retention_ms: Annotated[int, Meta(ge=0)] | None = None
    """How long the inbox keeps archived messages; unset: until they are removed."""
    grace_ms: Annotated[int, Meta(ge=0, le=600_000)] = 10_000
    """How long a server that was asked to stop goes on answering."""
    sweep_ms: Annotated[int, Meta(ge=10, le=600_000)] = 1_000
    """Time between looks for what time moves: delays that end, leases that lapse. Who waits is woken without it."""
    metrics_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 5_000
    """Time between the depths that a dashboard is told."""
    ws_heartbeat_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    """Time between pings to a dashboard."""
    ws_connections_max: Annotated[int, Meta(ge=0, le=100_000)] = 1_000
    """Dashboards that may be connected at once."""
    ws_slow_ms: Annotated[int, Meta(ge=1, le=600_000)] = 10_000
    """How long a dashboard may take to accept what it is sent, before it is dropped."""
    metrics_days: Annotated[int, Meta(ge=1, le=3_650)] = 30
    """How long minute roll-ups are kept."""
    trim_ms: Annotated[int, Meta(ge=10, le=86_400_000)] = 10_000
    """Time between looks for records that streams no longer keep."""
    canary_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 15_000
    """Time between the canary's synthetic messages; 0 turns it off."""
    canary_slo_ms: Count = 1_000
    """How fast the canary's message should be through."""
    access_log: bool = True
    """One JSON line a request, on stderr."""
    otel: bool = False
    """Send traces by OpenTelemetry; its own OTEL_* variables say where to."""


PLAIN_NAMES = {
    "AUTH_TOKEN": "auth_token",
    "DB_PATH": "db",
    "DB_POOL_SIZE": "pool_size",
    "DB_TIMEOUT": "busy_ms",
    "DEFAULT_TIMEOUT": "tree_timeout_ms",
    "GET_LIMIT_DEFAULT": "get_limit_default",
    "MAX_BATCH_SIZE": "tree_batch_max",
    "MAX_CONCURRENT_POLLS": "polls_max",
    "MAX_TIMEOUT": "wait_ms_max",
    "METRICS_COLLECTION_INTERVAL": "metrics_ms",
    "METRICS_RETENTION_DAYS": "metrics_days",
    "PORT": "port",
    "QUEUE_POLL_INTERVAL": "sweep_ms",
    "READ_TOKEN": "read_token",
    "STALE_WORKER_TIMEOUT": "worker_stale_ms",
    "WORKER_HEARTBEAT_INTERVAL": "worker_heartbeat_ms",
    "WORKER_ID": "worker_id",
    "WS_HEARTBEAT_INTERVAL": "ws_heartbeat_ms",
    "WS_MAX_CONNECTIONS": "ws_connections_max",
}
LISTS = {"cors_origins"}
TOKEN = re.compile(r"[!-~]+")
# What a client can send after "Authorization: Bearer".


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Merge all sources; a flag that was not given is None or missing."""
    environ = os.environ if environ is None else environ
    from_file = _from_file(file, environ)
    from_file.pop("client", None)
    given = {name: value for name, value in flags.items() if value is not None}
    values: dict[str, Any] = {}
    named: dict[str, str] = {}
    for source, name_of in (
        (from_file, lambda name: f"{name} in the configuration file"),
        (_from_plain_names(environ), {"db": "DB_PATH", "store": "PG_HOST"}.get),
        (_from_environment(environ), lambda name: f"PENSTOCK_{name.upper()}"),
        (given, lambda name: f"--{name}"),
    ):
        values |= source
        named |= {name: str(name_of(name)) for name in ("data", "db", "store") if name in source}
    _check_one_store(named)
    if not values.get("auth_token") and environ.get("PENSTOCK_TOKEN"):
        # What this machine's clients send is what its server wants, unless it was told otherwise.
        values["auth_token"] = environ["PENSTOCK_TOKEN"]
    try:
        return check_settings(msgspec.convert(values, Settings, strict=False))
    except msgspec.ValidationError as error:
        raise to_invalid_input(error, "setting", Settings) from None


def _check_one_store(named: Mapping[str, str]) -> None:
    """Refuse settings that name two stores. A folder given by flag names one too: it would hold a file of its own."""
    names = [named[name] for name in ("store", "db") if name in named]
    if named.get("data") == "--data" and not any(name.startswith("--") for name in names):
        names.append("--data")
    if len(names) > 1:
        raise InvalidInput(
            f"{names[0]} and {names[1]} name two different stores", field="store", hint="keep one of the two"
        )


def check_settings(settings: Settings) -> Settings:
    """Check what their types do not say; returns them."""
    for name in ("auth_token", "read_token"):
        token = getattr(settings, name)
        if token is not None and not TOKEN.fullmatch(token):
            raise InvalidInput(
                f"setting {name}: a token is made of visible ASCII characters, without spaces",
                field=name,
                hint="make one with: openssl rand -hex 32",
            )
    if settings.worker_stale_ms < 2 * settings.worker_heartbeat_ms:
        raise InvalidInput(
            f"setting worker_stale_ms: {settings.worker_stale_ms} is less than two heartbeats"
            f" ({settings.worker_heartbeat_ms} ms each): one that is late would take a worker off the list",
            field="worker_stale_ms",
        )
    return settings


def client_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The file's table `[client]`: the `url` and `token` with which this machine's commands reach a server."""
    table = _from_file(None, os.environ if environ is None else environ).get("client", {})
    if not isinstance(table, dict) or not table.keys() <= {"url", "token"}:
        raise InvalidInput("the table [client] holds url and token", field="client")
    return {name: str(value) for name, value in table.items()}


def _from_file(file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = file or environ.get("PENSTOCK_CONFIG")
    path = Path(named) if named else Path("penstock.toml")
    if not path.exists():
        if named:
            raise InvalidInput(f"there is no configuration file {path}", field="config")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}", field="config") from None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", field="config") from None


def _from_plain_names(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    host = environ.get("HOST")
    if host and _is_address(host):
        values["host"] = host
    for name, field in PLAIN_NAMES.items():
        if environ.get(name):
            values[field] = environ[name]
    if environ.get("PG_HOST"):
        values["store"] = _postgres_url(environ)
    listen = environ.get("LISTEN_ADDR")
    if listen:
        values |= _listen_address(listen)
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in Settings.__struct_fields__:
        own = environ.get(f"PENSTOCK_{field.upper()}")
        if own:
            values[field] = [part.strip() for part in own.split(",")] if field in LISTS else own
    return values


def _listen_address(text: str) -> dict[str, Any]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidInput(f"LISTEN_ADDR is host:port or :port, not {text!r}", field="LISTEN_ADDR")
    # A bare port has always meant every interface.
    return {"host": host.strip("[]") or "0.0.0.0", "port": port}


def _postgres_url(environ: Mapping[str, str]) -> str:
    user, password = quote(environ.get("PG_USER", "postgres"), safe=""), environ.get("PG_PASSWORD")
    secret = f":{quote(password, safe='')}" if password else ""
    host, database = quote(environ["PG_HOST"], safe=":[]"), quote(environ.get("PG_DB", "postgres"), safe="")
    return f"postgresql://{user}{secret}@{host}:{environ.get('PG_PORT', '5432')}/{database}"


def _is_address(text: str) -> bool:
    """HOST is set by many shells to the machine's name, which is not what to listen on."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
