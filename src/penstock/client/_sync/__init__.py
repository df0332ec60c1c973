# Made by tools/unasync.py from the asynchronous twin: change that.
"""The client, asynchronous here; tools/unasync.py makes its synchronous twin in `_sync` from it."""
