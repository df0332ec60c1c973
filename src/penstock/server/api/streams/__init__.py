"""The stream API: `/streams`."""
