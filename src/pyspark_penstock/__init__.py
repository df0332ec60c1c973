"""Spark imports every package of this form when it starts, to find `format("penstock")`: so it is this one line."""

from penstock.pipeline.source.data_source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
