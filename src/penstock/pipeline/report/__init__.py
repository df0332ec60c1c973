"""The report on a lake: figures, plots, and the page that shows them."""
