"""The SDK: one typed client over a file and over a server, opened by `penstock.connect` or `penstock.aio.connect`."""
