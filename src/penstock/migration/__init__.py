"""Moves all data of one store to another: `penstock migrate-store`."""
