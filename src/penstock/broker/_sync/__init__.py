"""The synchronous twin of the broker, made by tools/unasync.py."""
