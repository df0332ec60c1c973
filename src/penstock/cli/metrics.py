"""`penstock metrics`"""

from __future__ import annotations

from math import isfinite

import click

from penstock.cli.common import on_server
from penstock.cli.output import Output, write
from penstock.client._sync.http_session import Session


@click.command("metrics")
@on_server
def command(session: Session, out: Output) -> None:
    """Print a server's metrics in Prometheus format. JSON: {"metrics": [{"name", "labels", "value"}]}"""
    text = session.request("GET", "/metrics")[0].body
    if out.as_json:
        samples = [_sample(line) for line in text.decode().splitlines() if line and not line.startswith("#")]
        out.show({"metrics": samples}, lambda: None)
    else:
        write(text)


def _sample(line: str) -> dict[str, object]:
    """`name{label="value",…} 1.0`"""
    series, _, value = line.rpartition(" ")
    name, _, inside = series.partition("{")
    labels: dict[str, str] = {}
    inside = inside.removesuffix("}")
    while inside:
        label, _, rest = inside.partition('="')
        end = 0
        while rest[end] != '"':
            end += 2 if rest[end] == "\\" else 1
        labels[label] = rest[:end].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        inside = rest[end + 1 :].removeprefix(",")
    number = float(value)
    return {"name": name, "labels": labels, "value": number if isfinite(number) else value}
