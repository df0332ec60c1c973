"""What may be shown of an address or a text that somebody gave."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

WHERE = ("host", "hostaddr", "port", "dbname", "service", "schema")
"""Of the parameters of a database's URL, those that say where it leads."""

_USERINFO = re.compile(r"(://)[^\s/@'\"]{1,500}@")
_SECRET = re.compile(
    r"(?i)(\b(?:bearer|basic) +|(?:password|passwd|secret|token|api_?key)['\"]? *[:=] *)(['\"]?)[^\s'\"&,;)]{1,500}"
)


def without_secrets(text: str) -> str:
    """A text without the passwords of its URLs, and without the values of what is called a token or a password.

    >>> without_secrets("cannot open postgresql://me:pw@db/x, token=abc")
    'cannot open postgresql://…@db/x, token=…'
    """
    return _SECRET.sub(r"\1\2…", _USERINFO.sub(r"\1…@", text))


def without_password(url: str) -> str:
    """The user goes, too: what stands there may be a token. Up to the last @, as a password may hold anything."""
    return re.sub(r"^([a-z+]*:?//)?.*@", r"\1…@", url, flags=re.DOTALL).partition("?")[0]


def place_in(url: str) -> str:
    """Where it leads, without who goes there and how: a file's path, or a server's or database's address."""
    if url.startswith("sqlite:///"):
        return url.removeprefix("sqlite:///")
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    told = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in WHERE])
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}{'?' if told else ''}{told}"
