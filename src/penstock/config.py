"""Settings of a server.

Precedence: flag, `PENSTOCK_<NAME>`, plain environment variable (`PORT`, `DB_PATH`, …), configuration file, default.
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
    """Address to listen on; other than loopback only with a token."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8888
    """Port to listen on; 0 picks a free one."""
    data: str = "./penstock-data"
    """Data folder. It holds the store, unless `db` or `store` names another."""
    db: str | None = None
    """SQLite file, if it is not in the data folder."""
    store: str | None = None
    """Database URL: sqlite:///path or postgresql://…"""
    lake: str | None = None
    """Folder or URL (s3://…) of the tables that `penstock pipeline` writes, for analytics beyond the roll-ups; by
    default beside the file, or in the data folder."""
    pool_size: Annotated[int, Meta(ge=2, le=1_000)] | None = None
    """Connections to PostgreSQL; by default as many as are useful."""
    auth_token: str | None = None
    """Admin token. Every request must send it, or an API key."""
    read_token: str | None = None
    """Token that can read everything and change nothing."""
    dashboard: bool = True
    """Serve the dashboard at /."""
    insecure: bool = False
    """Allow other machines to connect without a token."""
    tls_cert: str | None = None
    """Certificate (PEM) for HTTPS."""
    tls_key: str | None = None
    """Private key of the certificate (PEM)."""
    durability: Literal["full", "relaxed"] = "full"
    """`full` responds after the fsync, `relaxed` before it."""
    journal: bool = True
    """Record all events in a journal, for live events and for Spark, beside the file or in the database."""
    cors_origins: list[str] = []
    """Origins whose web pages may use this server (CORS)."""
    payload_bytes: Count = 512 << 10
    """Largest message."""
    request_bytes: Count = 16 << 20
    """Largest request."""
    get_limit_default: Count = 1
    """Default number of messages of an inbox GET."""
    get_limit_max: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Most messages of an inbox GET."""
    batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """Most messages in one request."""
    wait_ms_default: Annotated[int, Meta(ge=0, le=600_000)] = 20_000
    """Default wait of a long poll."""
    wait_ms_max: Annotated[int, Meta(ge=0, le=600_000)] = 60_000
    """Longest wait of a long poll."""
    polls_max: Count = 20_000
    """Most long polls that wait at the same time."""
    tree_timeout_ms: Annotated[int, Meta(ge=0, le=600_000)] = 30_000
    """Default wait of a pop of the tree API."""
    tree_batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Most messages in one pop of the tree API."""
    worker_id: Annotated[str, Meta(min_length=1, max_length=255)] = msgspec.field(default_factory=own_name)
    """Name of this server in the list of workers, also for consumers without a name."""
    worker_heartbeat_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 10_000
    """Time between heartbeats of servers and named consumers."""
    worker_stale_ms: Annotated[int, Meta(ge=200, le=86_400_000)] = 30_000
    """Time without a heartbeat after which a worker is removed from the list."""
    connections_max: Count = 20_000
    """Most open connections."""
    commit_queue_max: Count = 20_000
    """Most commands that wait for a commit; further ones get a 429."""
    wal_bytes_max: Count = 1 << 30
    """Size of SQLite's write-ahead log above which pushes get a 429."""
    busy_ms: Annotated[int, Meta(ge=0, le=600_000)] = 5_000
    """How long a commit waits for another process that has locked the store."""
    retention_ms: Annotated[int, Meta(ge=0)] | None = None
    """How long the inbox keeps archived messages; unset: until they are deleted."""
    grace_ms: Annotated[int, Meta(ge=0, le=600_000)] = 10_000
    """How long a stopping server finishes requests."""
    sweep_ms: Annotated[int, Meta(ge=10, le=600_000)] = 1_000
    """Time between checks for ended delays and expired leases. Waiting polls do not depend on it."""
    metrics_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 5_000
    """Time between updates of queue depths for dashboards."""
    ws_heartbeat_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    """Time between pings to a dashboard."""
    ws_connections_max: Annotated[int, Meta(ge=0, le=100_000)] = 1_000
    """Most connected dashboards."""
    ws_slow_ms: Annotated[int, Meta(ge=1, le=600_000)] = 10_000
    """How long a dashboard may take to accept data before it is disconnected."""
    metrics_days: Annotated[int, Meta(ge=1, le=3_650)] = 30
    """How long to keep minute roll-ups."""
    trim_ms: Annotated[int, Meta(ge=10, le=86_400_000)] = 10_000
    """Time between runs of stream retention."""
    canary_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 15_000
    """Time between the canary's synthetic messages; 0 turns it off."""
    canary_slo_ms: Count = 1_000
    """How long a canary message may take."""
    access_log: bool = True
    """Log one JSON line per request on stderr."""
    otel: bool = False
    """Send OpenTelemetry traces; the OTEL_* variables configure the exporter."""


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
# Characters that a client can send after "Authorization: Bearer".


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Merge all sources; a flag that is not given is None or missing."""
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
        # Without a setting of its own, a server accepts the token that clients on this machine send.
        values["auth_token"] = environ["PENSTOCK_TOKEN"]
    try:
        return check_settings(msgspec.convert(values, Settings, strict=False))
    except msgspec.ValidationError as error:
        raise to_invalid_input(error, "setting", Settings) from None


def _check_one_store(named: Mapping[str, str]) -> None:
    """Refuse settings that name two stores. A data folder given by flag counts too, as it holds a file."""
    names = [named[name] for name in ("store", "db") if name in named]
    if named.get("data") == "--data" and not any(name.startswith("--") for name in names):
        names.append("--data")
    if len(names) > 1:
        raise InvalidInput(
            f"{names[0]} and {names[1]} name two different stores", field="store", hint="keep one of the two"
        )


def check_settings(settings: Settings) -> Settings:
    """Check the constraints that types cannot express, and return the settings."""
    for name in ("auth_token", "read_token"):
        token = getattr(settings, name)
        if token is not None and not TOKEN.fullmatch(token):
            raise InvalidInput(
                f"setting {name}: a token must be visible ASCII without spaces",
                field=name,
                hint="generate one with: openssl rand -hex 32",
            )
    if settings.worker_stale_ms < 2 * settings.worker_heartbeat_ms:
        raise InvalidInput(
            f"setting worker_stale_ms: {settings.worker_stale_ms} is less than two heartbeats"
            f" ({settings.worker_heartbeat_ms} ms each); a late heartbeat would remove a worker from the list",
            field="worker_stale_ms",
        )
    return settings


def client_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the `[client]` table of the file: the `url` and `token` that the CLI uses."""
    table = _from_file(None, os.environ if environ is None else environ).get("client", {})
    if not isinstance(table, dict) or not table.keys() <= {"url", "token"}:
        raise InvalidInput("the table [client] can only have url and token", field="client")
    return {name: str(value) for name, value in table.items()}


def _from_file(file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = file or environ.get("PENSTOCK_CONFIG")
    path = Path(named) if named else Path("penstock.toml")
    if not path.exists():
        if named:
            raise InvalidInput(f"configuration file {path} does not exist", field="config")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}", field="config") from None
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
        raise InvalidInput(f"LISTEN_ADDR: expected host:port or :port, got {text!r}", field="LISTEN_ADDR")
    # As elsewhere, :port means every interface.
    return {"host": host.strip("[]") or "0.0.0.0", "port": port}


def _postgres_url(environ: Mapping[str, str]) -> str:
    user, password = quote(environ.get("PG_USER", "postgres"), safe=""), environ.get("PG_PASSWORD")
    secret = f":{quote(password, safe='')}" if password else ""
    host, database = quote(environ["PG_HOST"], safe=":[]"), quote(environ.get("PG_DB", "postgres"), safe="")
    return f"postgresql://{user}{secret}@{host}:{environ.get('PG_PORT', '5432')}/{database}"


def _is_address(text: str) -> bool:
    """Return True for an address. Many shells set HOST to the machine's name, which is not an address to listen on."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
