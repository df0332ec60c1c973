"""The client, asynchronous here; tools/unasync.py makes its synchronous twin in `_sync` from it."""
