"""The event journal: format, recording, draining and reading."""
