"""Parses the URL of a file, a database or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from msgspec import Struct

from penstock.client.transport_errors import Address
from penstock.core.redact import without_password
from penstock.errors import InvalidInput
from penstock.store.factory import POSTGRES

if TYPE_CHECKING:
    import ssl

SCHEMES = "sqlite:///path, postgresql://user@host/database, http://host:port or https://host:port"


class ServerUrl(Struct, frozen=True):
    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base_path}"

    def address(self, tls: ssl.SSLContext | None) -> Address:
        if self.scheme == "http":
            return Address(self.host, self.port)
        import ssl  # Slow to import, and plain HTTP does without.

        return Address(self.host, self.port, tls or ssl.create_default_context())


def parse(url: str) -> str | ServerUrl:
    """Return the path of a file, the URL of a database, or a server."""
    if not isinstance(url, str):
        raise InvalidInput(f"url: expected str, got {type(url).__name__}", field="url", hint=SCHEMES)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return url.removeprefix("sqlite:///")
    if url.startswith(POSTGRES):
        return url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"{without_password(url)!r} is not a URL", field="url", hint=SCHEMES) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"cannot connect to {without_password(url)!r}", field="url", hint=f"give {SCHEMES}")
    if "@" in parts.netloc:
        raise InvalidInput(
            "a server URL must not contain a user or password", field="url", hint="give a token as `token`"
        )
    if "@" in parts.path or parts.query or parts.fragment:
        raise InvalidInput(
            "a server URL can only have a scheme, host, port and path", field="url", hint="give a token as `token`"
        )
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    try:
        host = parts.hostname.encode("idna").decode()
    except UnicodeError:
        raise InvalidInput(f"{parts.hostname!r} is not a valid host name", field="url") from None
    return ServerUrl(parts.scheme, host, port, quote(parts.path.rstrip("/"), safe="/%"))


def request_headers(server: ServerUrl, token: str | None) -> bytes:
    """Return the headers of every request."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    lines = [f"host: {host}:{server.port}", "accept: application/json", "user-agent: penstock-python"]
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidInput("the token must be printable ASCII without spaces", field="token")
        lines.append(f"authorization: Bearer {token}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")
