"""Generates docs/reference from the code: `python -m tools.reference`; with `--check` it only compares."""
