"""Backup, diagnosis and signals."""
