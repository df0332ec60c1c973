"""A push makes few function calls before its message is written. `python -m tools.hops` prints them."""

from __future__ import annotations

from tools.hops import GOALS, measure


def test_a_push_reaches_sql_in_few_calls() -> None:
    hops = {name: sum(len(stack) for stack in stacks) for name, stacks in measure().items()}
    assert all(hops[name] <= goal for name, goal in GOALS.items()), hops
