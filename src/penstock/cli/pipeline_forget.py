"""`penstock pipeline forget`"""

from __future__ import annotations

import getpass
from contextlib import closing
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.common import YES
from penstock.cli.output import Output, confirm, note
from penstock.cli.pipeline import PipelinePaths, SparkOptions, asking, on_spark, session
from penstock.cli.pipeline_progress import Display

if TYPE_CHECKING:
    from penstock.pipeline.forget import Found


@click.command("forget")
@click.option("--where", required=True, help="SQL condition on a row of bronze.events or silver.messages.")
@click.option("--by", help="Who asks, for the record.  [default: the user's name]")
@click.option("--dry-run", is_flag=True, help="Only count what would be removed.")
@YES
@on_spark
def forget(
    paths: PipelinePaths,
    where: str,
    by: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    spark_options: SparkOptions,
) -> None:
    """Remove from every file of the lake what it holds of the messages that a condition finds.

    A message is found if any of its rows in bronze.events or silver.messages meets the condition. Its rows stay, and
    so do all counts; bodies, keys, headers, reasons and errors are removed, also from older versions of the tables.
    Their rows in typed models are removed. SQL models must be removed before and added again afterwards.
    Each request is recorded in the table audit.forget_requests. The queues and the journal are not changed.

    Nothing else may use the lake meanwhile. On an object store, which has no lock, stop every pipeline first.

    JSON: {"messages", "bronze_rows", "silver_rows", "error_rows", "model_rows", "in_journal"}
    """
    out = Output(as_json)
    with Display("forget") as display:
        lake = paths.lake()
        lock = lake.lock()
        try:
            with session(paths, display, spark_options, brief=True) as spark, asking():
                from penstock.pipeline.forget import Forgetting
                from penstock.pipeline.lake.storage import RemoteFolder

                display.doing("searching")
                forgetting = Forgetting(spark, lake, where)
                found = forgetting.found()
                if not dry_run:
                    display.clear()
                    if isinstance(lake.folder, RemoteFolder):
                        note("no other pipeline may run on this lake meanwhile: its new files would be deleted")
                    confirm(f"Remove {found.messages} messages' contents from the lake for good?", yes)
                    display.doing("removing")
                    forgetting.forget(by or getpass.getuser())
                display.clear()
                in_journal = _is_in_journal(paths, found)
                if in_journal:
                    note(
                        f"the journal still has some of these events, up to offset {found.last_offset}; they are gone"
                        " once retention has removed them (`penstock journal show` shows its first offset)"
                    )
                answer = msgspec.structs.asdict(found)
                answer.pop("last_offset")
                answer["in_journal"] = in_journal
                out.show(answer, lambda: out.fields(answer))
        finally:
            lock.close()


def _is_in_journal(paths: PipelinePaths, found: Found) -> bool:
    if found.last_offset is None:
        return False
    with closing(paths.journal.open()) as log:
        return log.first_offset <= found.last_offset
