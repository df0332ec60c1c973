"""Limits how many different wrong credentials one address may try per minute."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable

from penstock.wire.http_errors import HttpError

WRONG_MAX = 20
WINDOW_SECONDS = 60.0
REMEMBERED_MAX = 10_000


class LoginThrottle:
    """Counts wrong credentials by address, and remembers which addresses have used a valid one.

    A wrong credential that is sent again and again counts once: it is a worker with an old key, not a guess. A
    credential that was right at this address before is let through even while the address is blocked, so that an
    attacker behind the same proxy cannot lock out those who are working.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: dict[str, dict[int, float]] = {}
        self._right: dict[tuple[str, bytes], None] = {}

    def check(self, peer: str, credential: bytes) -> None:
        """Raise before comparing the credential if this address has made too many wrong guesses."""
        if not self._wrong or (peer, credential) in self._right:
            return
        tried = self._wrong.get(_network(peer))
        if tried is None:
            return
        now = self._clock()
        for guess in [guess for guess, until in tried.items() if until <= now]:
            del tried[guess]
        if len(tried) >= WRONG_MAX and hash(credential) not in tried:
            seconds = math.ceil(min(tried.values()) - now)
            raise HttpError(
                429,
                "too_many_failures",
                f"too many wrong credentials from this address ({len(tried)} in the last minute)",
                hint="check the token, and try again later",
                headers={"retry-after": str(max(1, seconds))},
            )

    def failed(self, peer: str, credential: bytes) -> None:
        network = _network(peer)
        tried = self._wrong.get(network)
        if tried is None:
            if len(self._wrong) >= REMEMBERED_MAX:
                del self._wrong[next(iter(self._wrong))]
            tried = self._wrong[network] = {}
        tried[hash(credential)] = self._clock() + WINDOW_SECONDS

    def succeeded(self, peer: str, credential: bytes) -> None:
        if (peer, credential) not in self._right:
            if len(self._right) >= REMEMBERED_MAX:
                del self._right[next(iter(self._right))]
            self._right[peer, credential] = None


def _network(peer: str) -> str:
    """Return the IPv4 address, or the /64 network of an IPv6 address, which usually belongs to one customer."""
    if ":" not in peer:
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
