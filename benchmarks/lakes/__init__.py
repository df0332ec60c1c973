"""Parts of the pipeline benchmark: the journal, the sections, the report and the figure."""
