"""Wrong credentials are counted and limited by address."""

from __future__ import annotations

import pytest

from penstock.server.login_throttle import WRONG_MAX, LoginThrottle
from penstock.wire.http_errors import HttpError


def test_guesses_are_counted_by_address_and_forgotten_after_a_minute() -> None:
    now = 0.0
    throttle = LoginThrottle(lambda: now)
    for number in range(WRONG_MAX):
        throttle.failed(f"2001:db8::{number}", b"%d" % number)
    throttle.check("192.0.2.1", b"x")
    throttle.check("2001:db8:0:1::1", b"x")
    with pytest.raises(HttpError, match="too many wrong credentials"):
        throttle.check("2001:db8::ffff", b"x")
    now = 60.0
    throttle.check("2001:db8::ffff", b"x")


def test_ipv4_addresses_are_counted_separately_on_a_dual_stack_socket() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    for number in range(WRONG_MAX):
        throttle.failed("::ffff:192.0.2.1", b"%d" % number)
    throttle.check("::ffff:192.0.2.2", b"x")
    with pytest.raises(HttpError, match="too many wrong credentials"):
        throttle.check("192.0.2.1", b"x")
