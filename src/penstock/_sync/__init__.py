"""Synchronous twins, made by tools/unasync.py from the asynchronous modules of the same names."""
