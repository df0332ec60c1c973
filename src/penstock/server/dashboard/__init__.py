"""The dashboard and the endpoints behind it."""
