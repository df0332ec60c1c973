"""Parts of the PostgreSQL benchmark: the systems, the cells, the churn, the server, the report and the figure."""
