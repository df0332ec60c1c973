"""The tree API: `/api/v1`."""
