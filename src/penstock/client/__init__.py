"""The SDK: one client for files, databases and servers, opened by `penstock.connect` or `penstock.aio.connect`."""
