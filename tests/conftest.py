"""Settings for all tests: no deadline for Hypothesis examples, and SIGINT enabled in child processes."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes its background jobs and all their children ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW = ("tests/spark/", "tests/browser/", "tests/crash/", "tests/proof/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no core is idle while another runs the last slow test."""
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))
