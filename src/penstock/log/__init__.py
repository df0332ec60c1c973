"""Streams: logs of records in segment files, read without locks, and consumers with durable positions."""
