"""`penstock doctor FILE`: check a queue file or database."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from penstock.ops.doctor import Diagnosis, examine, examine_database
from penstock.store.factory import POSTGRES

MARKS = {"ok": click.style("ok", fg="green"), "note": click.style("note", fg="yellow")}
PROBLEM = click.style("PROBLEM", fg="red", bold=True)


@click.command("doctor")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON array.")
def command(file: str, as_json: bool) -> None:
    """Check a queue file: integrity, schema, stuck leases, sizes. Exit code 1 if there is a problem.

    With a URL (postgresql://user@host/database), check that database and whether its commits survive a crash.
    """
    found = examine_database(file) if file.startswith(POSTGRES) else examine(Path(file))
    findings = [_printable(finding) for finding in found]
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


def _printable(finding: Diagnosis) -> Diagnosis:
    """Escape bytes that are not UTF-8, which a file name may contain."""
    advice = finding.advice and _text(finding.advice)
    return msgspec.structs.replace(finding, detail=_text(finding.detail), advice=advice)


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
