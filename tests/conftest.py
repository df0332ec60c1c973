"""Settings for all tests: no deadline for Hypothesis examples, and SIGINT enabled in child processes."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background jobs ignore it, and with them all their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW = ("tests/spark/", "tests/browser/", "tests/crash/", "tests/proof/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, so that no core has to wait for the other's last one."""
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))
