"""Removes passwords and tokens from URLs and texts before they are shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

# Parameters of a database URL that tell which database it is, and hold no secret.
WHERE = ("host", "hostaddr", "port", "dbname", "service", "schema")

_USERINFO = re.compile(r"(://)[^\s/@'\"]{1,500}@")
_SECRET = re.compile(
    r"(?i)(\b(?:bearer|basic) +|(?:password|passwd|secret|token|api_?key)['\"]? *[:=] *)(['\"]?)[^\s'\"&,;)]{1,500}"
)


def without_secrets(text: str) -> str:
    """Return a text without the passwords of its URLs and without the values of its tokens and passwords.

    >>> without_secrets("cannot open postgresql://me:pw@db/x, token=abc")
    'cannot open postgresql://…@db/x, token=…'
    """
    return _SECRET.sub(r"\1\2…", _USERINFO.sub(r"\1…@", text))


def without_password(url: str) -> str:
    """Return a URL without its user, which may be a token, and its password, which may itself contain an @."""
    return re.sub(r"^([a-z+]*:?//)?.*@", r"\1…@", url, flags=re.DOTALL).partition("?")[0]


def place_in(url: str) -> str:
    """Return a file's path, or the address of a server or database without credentials and connection options."""
    if url.startswith("sqlite:///"):
        return url.removeprefix("sqlite:///")
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in WHERE])
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}{'?' if query else ''}{query}"
