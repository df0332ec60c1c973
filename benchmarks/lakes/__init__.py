"""Parts of the pipeline's benchmark: the journal that is read, the sections, the report and the figure."""
