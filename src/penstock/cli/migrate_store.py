"""`penstock migrate-store`"""

from __future__ import annotations

import click

from penstock.cli.common import JSON, reporting
from penstock.cli.output import Output, note, progress

COLUMNS = ("name", "ready", "scheduled", "leased", "dead", "archived")


@click.command("migrate-store")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--leave-streams", is_flag=True, help="Move only the queues.")
@JSON
def command(source: str, target: str, leave_streams: bool, as_json: bool) -> None:
    """Move all queues and streams from a SQLite file to PostgreSQL, or back. Nobody may use either meanwhile.

    FROM and TO: a file, a server's folder or sqlite:///PATH, and postgresql://user@host/database. TO is empty, or is
    what an interrupted move has left: the same command goes on from there. FROM is left as it is.

    JSON: {"source", "target", "queues": [{"name", "ready", "scheduled", "leased", "dead", "archived"}], "messages",
    "checksum", "streams", "records", "streams_checksum", "resumed", "left_behind": {"streams", "journal_records"}}
    """
    from penstock.migration.migrate import migrate

    out = Output(as_json)
    with reporting(), progress("migrate-store", None) as advance:
        done = 0

        def report(now_done: int, total: int) -> None:
            nonlocal done
            advance(now_done - done, total)
            done = now_done

        moved = migrate(source, target, leave_streams=leave_streams, progress=report)
    rows = [[getattr(queue, column) for column in COLUMNS] for queue in moved.queues]
    out.show(moved, lambda: out.table(COLUMNS, rows, empty="there are no queues"))
    note(f"moved and compared {moved.messages} messages, checksum {moved.checksum}")
    if moved.streams:
        note(f"and {moved.records} records of {moved.streams} streams, checksum {moved.streams_checksum}")
    for what, count in moved.left_behind.items():
        note(f"left behind with {moved.source}: {count} {what.replace('_', ' ')}")
