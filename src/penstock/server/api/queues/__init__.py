"""The queue API: `/queues`."""
