"""Batches concurrent commands into one transaction and one fsync."""
