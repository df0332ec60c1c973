"""HMAC signatures: a queue with a secret accepts only payloads signed with it, through every API."""

from __future__ import annotations

import hashlib
import hmac

from penstock.core.model import system_clock
from penstock.wire.http_errors import HttpError

# Name of the message header that keeps the signature.
SIGNATURE_NAME = "penstock-signature"
SIGNATURE_WINDOW_MS = 5 * 60_000


def sign(secret: str, payload: bytes) -> str:
    """Return the signature of a payload, with the current time."""
    stamp = str(system_clock())
    return f"t={stamp},v1={_digest(secret, stamp, payload)}"


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
    wanted = _digest(secret, stamp, payload)
    if not hmac.compare_digest(wanted.encode(), given.lower().encode()):
        raise HttpError(422, "bad_signature", "the signature does not match the payload", field="signature")


def _digest(secret: str, stamp: str, payload: bytes) -> str:
    return hmac.new(secret.encode(), stamp.encode() + b"." + payload, hashlib.sha256).hexdigest()
