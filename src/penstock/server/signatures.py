"""Looks up the secrets of queues, with which their messages must be signed."""

from __future__ import annotations

import hmac
import time

from penstock.broker.broker import Broker
from penstock.errors import Conflict

SIGNATURE_HEADER = b"x-penstock-signature"
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
