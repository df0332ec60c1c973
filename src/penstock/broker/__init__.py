"""Decides what happens to a message: the only caller of stores."""
