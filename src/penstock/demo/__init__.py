"""A shop that never closes: traffic through every face of a server, for `penstock demo`."""
