"""Penstock over HTTP: an ASGI application whose faces translate to one broker."""
