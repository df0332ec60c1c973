"""The `penstock` command: one file per noun, loaded when it is used.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partly done, 4 not authorised, 5 not reachable, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from penstock import __version__
from penstock.cli.lazy_group import LazyGroup
from penstock.errors import PenstockError

COMMANDS = {
    "backup": ("penstock.cli.backup", "Copy a queue's file while it is in use."),
    "bench": ("penstock.cli.bench", "A quick load: messages a second and latency."),
    "completion": ("penstock.cli.completion", "Print a shell's completion script."),
    "demo": ("penstock.cli.demo", "A server with traffic through every face, to look at."),
    "dlq": ("penstock.cli.dlq", "Look at, requeue and purge dead letters."),
    "doctor": ("penstock.cli.doctor", "Check a queue's file or database."),
    "export": ("penstock.cli.export", "Write a queue's messages as NDJSON."),
    "health": ("penstock.cli.health", "Ask a server whether it is fit for work."),
    "import": ("penstock.cli.import_", "Take an export back."),
    "journal": ("penstock.cli.journal", "See what happened to messages, in order, and what happens now."),
    "key": ("penstock.cli.key", "Make, list and revoke a queue's API keys."),
    "message": ("penstock.cli.message", "Push, lease, settle and look at messages."),
    "metrics": ("penstock.cli.metrics", "Print a server's metrics in Prometheus format."),
    "migrate-store": ("penstock.cli.migrate_store", "Move all queues between a file and PostgreSQL."),
    "pipeline": ("penstock.cli.pipeline", "Spark: what passed through the queues, as tables."),
    "queue": ("penstock.cli.queue", "Make, list, change and remove queues."),
    "restore": ("penstock.cli.restore", "Put a backup in place."),
    "serve": ("penstock.cli.serve", "Serve queues over HTTP."),
    "stats": ("penstock.cli.stats", "Counts, ages and rates of queues."),
    "stream": ("penstock.cli.stream", "Append to, read, follow and mend streams."),
    "workers": ("penstock.cli.workers", "Who works: servers and consumers, and what they hold."),
}


def _show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"penstock, version {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, late=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it.")
def cli() -> None:
    """The message queue that grows with your program.

    Commands talk to a server (--url or PENSTOCK_URL, by default http://127.0.0.1:8888; --token or PENSTOCK_TOKEN) or,
    with --db PATH or --data DIR, straight to a queue's file. All but serve, demo and completion take --json.
    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partly done, 4 not authorised, 5 not reachable.
    """


def main() -> None:
    _stand_in_for_closed()
    os.umask(0o077)  # What it writes is its user's alone, unless they change that.
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        _complain(error)
        sys.exit(error.exit_code)
    except PenstockError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.stdout = None  # It may be what is full; Python would try once more, and tell of it in its own way.
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _stand_in_for_closed() -> None:
    """Whoever started this may have closed them (`>&-`), and the next file that is opened must not take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _complain(error: click.ClickException) -> None:
    """One line, with a hint."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = "".join(letter if letter.isprintable() else " " for letter in error.format_message())
    text = " ".join(text.split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f" (try '{error.ctx.command_path} --help')"
    click.echo(f"error: {text}", err=True)
