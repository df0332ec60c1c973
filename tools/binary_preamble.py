"""Runs before the single-file server starts, and reports a Python for which its extension modules were not built."""

import sys

try:
    import msgspec  # noqa: F401
except ImportError as error:
    sys.exit(f"error: this file was built for another version of Python or another platform: {error}")
