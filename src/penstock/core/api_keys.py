"""Creates API keys. Only their hash is stored."""

from __future__ import annotations

import hashlib
import secrets


def new_key() -> tuple[str, str, bytes]:
    """Return a new key's id, the secret to show once, and the hash to store."""
    key_id = secrets.token_hex(6)
    secret = f"pk_{key_id}_{secrets.token_urlsafe(24)}"
    return key_id, secret, hash_key(secret)


def hash_key(secret: str) -> bytes:
    """Return the hash to store. The secret has 192 random bits, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).digest()
