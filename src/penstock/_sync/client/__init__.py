"""Made by tools/unasync.py from penstock.client."""
