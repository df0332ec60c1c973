"""Parts of the server benchmark: the load, the cells, the promises, the report and the figure."""
