"""The log, which records: segments on disk, readers without locks, and consumers with durable positions."""
