"""A user's own tables in the lake: typed tables per queue, SQL models, expectations."""
