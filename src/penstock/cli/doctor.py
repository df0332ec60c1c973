"""`penstock doctor FILE`: is this queue well?"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from penstock.doctor import Finding, examine

MARKS = {"ok": click.style("ok", fg="green"), "note": click.style("note", fg="yellow")}
PROBLEM = click.style("PROBLEM", fg="red", bold=True)


@click.command("doctor")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Findings as a JSON array.")
def command(file: Path, as_json: bool) -> None:
    """Check a queue's file: integrity, schema, stuck leases, sizes. Exit code 1 when there is a problem."""
    findings = [_told(finding) for finding in examine(file)]
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = MARKS.get(finding.level, PROBLEM)
            click.echo(f"{finding.what:<{width}}  {mark}  {finding.detail}")
            if finding.advice:
                click.echo(f"{'':<{width}}  → {finding.advice}")
    sys.exit(any(finding.level == "problem" for finding in findings))


def _told(finding: Finding) -> Finding:
    """The name of a file may be no text."""
    advice = finding.advice and _text(finding.advice)
    return msgspec.structs.replace(finding, detail=_text(finding.detail), advice=advice)


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
