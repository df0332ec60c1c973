"""`penstock pipeline retain`"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.output import Output
from penstock.cli.pipeline import PipelinePaths, on_lake

_DAY_MS = 86_400_000
_UNITS = {"h": 3_600_000, "d": _DAY_MS}
FOREVER = "forever"


class Limit(click.ParamType[tuple[str, int | None]]):
    """A part of the lake and how long to keep it, PART=TIME."""

    name = "part=time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value
        part, _, time = value.partition("=")
        if time == FOREVER:
            return part, None
        found = re.fullmatch(r"([1-9]\d{0,4})([hd])", time)
        if not found:
            self.fail(f"{value!r} is not PART=TIME, such as bronze=90d, bronze.bodies=12h, silver=forever", param, ctx)
        return part, int(found[1]) * _UNITS[found[2]]


@click.command("retain")
@click.argument("limits", nargs=-1, type=Limit(), metavar="[PART=TIME]...")
@on_lake
def retain(paths: PipelinePaths, limits: Sequence[tuple[str, int | None]], as_json: bool) -> None:
    """Set how long the lake keeps bronze.bodies, bronze, silver and gold.errors; without arguments, show it.

    Times are 12h, 30d or forever, the default. The lake stores them, and `pipeline run` and `compact` apply them:
    bodies become null, rows are removed. An event that silver or gold has not read stays. Needs no Java.

    JSON: {"bronze.bodies", "bronze", "silver", "gold.errors"}, in milliseconds or null
    """
    from penstock.pipeline.retention import KEPT, retain, stored_retention

    out, lake = Output(as_json), paths.lake()
    if limits:
        lock = lake.lock()
        try:
            found = retain(lake, dict(limits))
        finally:
            lock.close()
    else:
        found = stored_retention(lake)
    answer = {name: found.get(name) for name in KEPT}
    out.show(answer, lambda: out.fields({name: _shown(ms) for name, ms in answer.items()}))


def _shown(ms: int | None) -> str:
    if ms is None:
        return FOREVER
    return f"{ms // _DAY_MS}d" if ms % _DAY_MS == 0 else f"{ms // _UNITS['h']}h"
