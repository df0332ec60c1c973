"""Penstock over HTTP: an ASGI application whose APIs share one broker."""
