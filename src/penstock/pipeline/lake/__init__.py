"""The lake: Delta tables and what fills them."""
