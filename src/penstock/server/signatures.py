"""HMAC signatures: a queue with a secret accepts only payloads signed with it, through every API."""

from __future__ import annotations

import hashlib
import hmac
import time

from penstock.broker.broker import Broker
from penstock.core.model import system_clock
from penstock.errors import Conflict
from penstock.wire.http_errors import HttpError

SIGNATURE_HEADER = b"x-penstock-signature"
# Name of the message header that keeps the signature.
SIGNATURE_NAME = "penstock-signature"
SIGNATURE_WINDOW_MS = 5 * 60_000
SECRET_CACHE_SECONDS = 2.0


class Signatures:
    """Looks up the secrets of queues in the store and caches them for two seconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._secrets: dict[str, tuple[float, str | None]] = {}

    async def secret(self, queue: str) -> str | None:
        now = time.monotonic()
        found = self._secrets.get(queue)
        if found is None or found[0] < now:
            if len(self._secrets) > 10_000:
                self._secrets.clear()
            found = self._secrets[queue] = (now + SECRET_CACHE_SECONDS, await self._broker.find_secret(queue))
        return found[1]

    async def set(self, queue: str, secret: str | None) -> None:
        await self._broker.set_secret(queue, secret)
        self.forget(queue)

    async def require(self, queue: str, secret: str | None) -> None:
        """Raise Conflict if an existing queue has another secret."""
        found = await self._broker.find_secret(queue)
        if (found is None) != (secret is None) or not hmac.compare_digest(
            (found or "").encode(), (secret or "").encode()
        ):
            raise Conflict(
                f"queue {queue!r} exists with another secret", hint="change its secret instead of creating it"
            )

    def forget(self, queue: str) -> None:
        self._secrets.pop(queue, None)


def check_signature(
    secret: str, payload: bytes, signature: str | None, window_ms: int | None = SIGNATURE_WINDOW_MS
) -> None:
    """Check a signature `t=<ms>,v1=<hex hmac-sha256 of "t.payload">` and its age, in constant time."""
    if signature is None:
        raise HttpError(
            422, "unsigned", "this queue only accepts signed messages", field="signature", hint="see the HMAC how-to"
        )
    parts = dict(part.strip().partition("=")[::2] for part in signature.split(","))
    stamp, given = parts.get("t", ""), parts.get("v1", "")
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 16 or not given:
        raise HttpError(422, "bad_signature", "malformed signature; expected t=<ms>,v1=<hex>", field="signature")
    if window_ms is not None and abs(system_clock() - int(stamp)) > window_ms:
        raise HttpError(422, "stale_signature", "the signature's timestamp is too far from now", field="signature")
    wanted = hmac.new(secret.encode(), stamp.encode() + b"." + payload, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(wanted.encode(), given.lower().encode()):
        raise HttpError(422, "bad_signature", "the signature does not match the payload", field="signature")
