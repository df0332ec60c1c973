"""A simulated shop that uses the queues and streams of a server, for `penstock demo`."""
