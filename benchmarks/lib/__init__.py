"""Parts of the embedded benchmark: systems, clock, scenarios, report and figure."""
