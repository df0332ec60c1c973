"""`penstock migrate-store`"""

from __future__ import annotations

import click

from penstock.cli.common import JSON, reporting
from penstock.cli.output import Output, advance_to, note, progress

COLUMNS = ("name", "ready", "scheduled", "leased", "dead", "archived")


@click.command("migrate-store")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--leave-streams", is_flag=True, help="Move only the queues.")
@JSON
def command(source: str, target: str, leave_streams: bool, as_json: bool) -> None:
    """Copy all queues and streams from a SQLite file to PostgreSQL, or back. Nothing may use either meanwhile.

    FROM and TO: a file, a server's data folder or sqlite:///PATH, and postgresql://user@host/database. TO must be
    empty, or come from an interrupted run, which the same command continues. FROM is not changed.

    JSON: {"source", "target", "queues": [{"name", "ready", "scheduled", "leased", "dead", "archived"}], "messages",
    "checksum", "streams", "records", "streams_checksum", "resumed", "left_behind": {"streams", "journal_records"}}
    """
    from penstock.migration.migrate import migrate

    out = Output(as_json)
    with reporting(), progress("migrate-store", None) as advance:
        moved = migrate(source, target, leave_streams=leave_streams, progress=advance_to(advance))
    rows = [[getattr(queue, column) for column in COLUMNS] for queue in moved.queues]
    out.show(moved, lambda: out.table(COLUMNS, rows, empty="there are no queues"))
    note(f"copied and verified {moved.messages} messages, checksum {moved.checksum}")
    if moved.streams:
        note(
            f"copied and verified {moved.records} records of {moved.streams} streams, checksum {moved.streams_checksum}"
        )
    for what, count in moved.left_behind.items():
        note(f"not copied from {moved.source}: {count} {what.replace('_', ' ')}")
