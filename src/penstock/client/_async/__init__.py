"""The client, asynchronous here and synchronous in `_sync`."""
