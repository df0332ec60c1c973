"""Processor time of a message through the server, as the load and the store grow."""
