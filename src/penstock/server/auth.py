"""Authentication and authorization: server tokens, keys per queue or stream, and browser origin checks."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Sequence
from functools import lru_cache
from re import compile as pattern

from msgspec import Struct

from penstock.broker.broker import Broker
from penstock.core.api_keys import hash_key
from penstock.core.model import ApiKey
from penstock.server.http.messages import Request
from penstock.server.http.websocket import offered_token
from penstock.server.login_throttle import LoginThrottle
from penstock.server.routing import Right, Route
from penstock.wire.http_errors import HttpError

KEY_CACHE_SECONDS = 2.0
# Only well-formed ids are looked up and cached, because anyone can send anything.
KEY_ID = pattern("[0-9a-f]{12}")
HOST_LENGTH_MAX = 256
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


class Principal(Struct, frozen=True):
    name: str
    queue: str | None = None
    """The only queue it may use; None for both queue and stream means all."""
    rights: frozenset[str] = frozenset()
    reads_only: bool = False
    stream: str | None = None
    """The only stream it may use."""

    @property
    def is_admin(self) -> bool:
        return self.queue is None and self.stream is None and not self.reads_only

    def may_somewhere(self, right: Right) -> bool:
        """Return True if it may have the right on some queue."""
        return self.stream is None and self._has(right)

    def may(self, right: Right, queue: str | None, stream: str | None = None) -> bool:
        if self.queue is None and self.stream is None:
            return self._has(right)
        if queue is not None:
            is_own = queue.removesuffix(".dlq") == self.queue
        else:
            is_own = stream is not None and stream == self.stream
        return is_own and self._has(right)

    def _has(self, right: Right) -> bool:
        if self.queue is None and self.stream is None:
            return right == "read" or not self.reads_only
        return right == "read" or right in self.rights or "admin" in self.rights


ADMIN = Principal("admin")
READER = Principal("reader", reads_only=True)
ANYONE = Principal("anyone", queue="")


class Gate:
    """Authorizes each request. Keys are read from the store and cached for two seconds."""

    def __init__(
        self,
        broker: Broker,
        token: str | None,
        cors_origins: Sequence[str],
        public_hosts: bool,
        read_token: str | None = None,
    ) -> None:
        self._broker = broker
        self._token = token.encode() if token else None
        self._read_token = read_token.encode() if read_token else None
        self._origins = frozenset(origin.lower().rstrip("/") for origin in cors_origins)
        self._any_host = public_hosts or token is not None
        self._keys: dict[str, tuple[float, ApiKey | None]] = {}
        self._throttle = LoginThrottle()

    async def admit(self, request: Request, route: Route) -> Principal:
        right = route.right
        if not self._any_host:
            self._check_browser(request, right)
        if self._token is None:
            return ADMIN
        if right == "public":
            return self._identify_optional(request)
        principal = await self._identify(request)
        if principal.reads_only and request.method in ("GET", "HEAD") and route.safe:
            return principal
        if right == "authenticated":
            allowed = route.least_right is None or principal.may_somewhere(route.least_right)
        else:
            allowed = principal.may(right, request.params.get("queue"), request.params.get("stream"))
        if not allowed:
            raise HttpError(
                403,
                "forbidden",
                f"permission denied: this key does not have the right to {route.least_right or right} here",
            )
        return principal

    def _identify_optional(self, request: Request) -> Principal:
        """Identify the caller of a public route without looking up keys: a liveness probe must not need the store."""
        credential = _credential(request)
        if not credential or credential.startswith(b"pk_"):
            return ANYONE
        peer = request.exchange.client or ""
        try:
            self._throttle.check(peer, credential)
        except HttpError:
            return ANYONE
        principal = self._match_server_token(credential)
        if principal is None:
            self._throttle.failed(peer, credential)
        return principal or ANYONE

    def _match_server_token(self, credential: bytes) -> Principal | None:
        """Return the principal of a server token; None if the credential is neither token."""
        assert self._token is not None
        if hmac.compare_digest(credential, self._token):
            return ADMIN
        if self._read_token is not None and hmac.compare_digest(credential, self._read_token):
            return READER
        return None

    async def _identify(self, request: Request) -> Principal:
        credential = _credential(request)
        if not credential:
            raise _unauthorized("authentication required", "send Authorization: Bearer <token>")
        peer = request.exchange.client or ""
        self._throttle.check(peer, credential)
        principal = self._match_server_token(credential) or await self._key_holder(credential)
        if principal is None:
            self._throttle.failed(peer, credential)
            raise _unauthorized("invalid token", "check the token or key")
        self._throttle.succeeded(peer, credential)
        return principal

    async def _key_holder(self, credential: bytes) -> Principal | None:
        key = await self._find_key(credential.decode("latin-1"))
        return None if key is None else Principal(f"key:{key.id}", key.queue, frozenset(key.rights), stream=key.stream)

    async def _find_key(self, secret: str) -> ApiKey | None:
        prefix, _, rest = secret.partition("_")
        key_id = rest.partition("_")[0]
        if prefix != "pk" or not KEY_ID.fullmatch(key_id):
            return None
        now = time.monotonic()
        found = self._keys.get(key_id)
        if found is None or found[0] < now:
            if len(self._keys) > 10_000:
                self._keys.clear()
            found = (now + KEY_CACHE_SECONDS, await self._broker.find_key(key_id))
            self._keys[key_id] = found
        key = found[1]
        if key is None or not hmac.compare_digest(hash_key(secret), key.hash):
            return None
        return key

    def forget_keys(self) -> None:
        self._keys.clear()

    def _check_browser(self, request: Request, right: Right) -> None:
        """Without a token, accept only requests from this machine, and none made by another site's web page."""
        host = request.headers.get(b"host", b"")
        if len(host) > HOST_LENGTH_MAX or not _is_local(host):
            raise HttpError(403, "foreign_host", "a server without a token only accepts requests to localhost")
        origin = request.headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1").lower()
            if self._allows(text) or text.partition("://")[2] == host.decode("latin-1").lower():
                return
        elif right == "public" or request.headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
            # A request for an image or a link has no Origin header, but Sec-Fetch-Site names where it comes from.
            return
        raise HttpError(403, "foreign_origin", "a server without a token does not accept requests from other web pages")

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def cors_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        if not self._origins:
            return []
        origin = request.header(b"origin")
        if origin is None or not self._allows(origin.decode("latin-1").lower()):
            return [(b"vary", b"origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"vary", b"origin"),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
        ]


def _credential(request: Request) -> bytes | None:
    value = request.header(b"authorization")
    if value is None:
        return offered_token(request)
    scheme, _, credential = value.partition(b" ")
    return credential.strip() if scheme.lower() == b"bearer" else None


@lru_cache(maxsize=256)
def _is_local(host: bytes) -> bool:
    """Return True if a Host header, with or without a port, names this machine; a missing one is no attack."""
    text = host.decode("latin-1").lower()
    name = text.rpartition(":")[0] if text.rpartition(":")[2].isdigit() else text
    if not name or name in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _unauthorized(message: str, hint: str | None) -> HttpError:
    return HttpError(401, "unauthorized", message, hint=hint, headers={"www-authenticate": "Bearer"})
