"""JSON schemas and encodings of the HTTP APIs, shared by server, client and CLI."""
