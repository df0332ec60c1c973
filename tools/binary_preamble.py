"""Run by the single-file server before it starts: reports a Python that its extension modules were not built for."""

import sys

try:
    import msgspec  # noqa: F401
except ImportError as error:
    sys.exit(f"error: this file was built for another version of Python or another platform: {error}")
