"""Where messages are remembered."""
