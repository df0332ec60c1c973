"""What may be shown of an address that somebody gave."""

from __future__ import annotations

import re


def without_password(url: str) -> str:
    """The user goes, too: what stands there may be a token."""
    return re.sub(r"//[^/]*@", "//…@", url)
