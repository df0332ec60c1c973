"""The `penstock` command: one file per noun, imported on first use.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 partly done, 4 not authorised, 5 server not reachable,
130 interrupted.
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
    "backup": ("penstock.cli.backup", "Back up a queue file while it is in use."),
    "bench": ("penstock.cli.bench", "Run a quick load test: messages per second and latency."),
    "completion": ("penstock.cli.completion", "Print a shell completion script."),
    "demo": ("penstock.cli.demo", "Start a demo server with traffic through every API."),
    "dlq": ("penstock.cli.dlq", "List, requeue and purge dead letters."),
    "doctor": ("penstock.cli.doctor", "Check a queue file or database for problems."),
    "export": ("penstock.cli.export", "Write a queue's messages as NDJSON."),
    "health": ("penstock.cli.health", "Check whether the server is ready."),
    "import": ("penstock.cli.import_", "Import messages from an export."),
    "journal": ("penstock.cli.journal", "Show and follow what happens to messages, in order."),
    "key": ("penstock.cli.key", "Create, list and revoke API keys."),
    "message": ("penstock.cli.message", "Push, lease, acknowledge and inspect messages."),
    "metrics": ("penstock.cli.metrics", "Print a server's metrics in Prometheus format."),
    "migrate-store": ("penstock.cli.migrate_store", "Move all queues between a file and PostgreSQL."),
    "pipeline": ("penstock.cli.pipeline", "Query everything that went through the queues with Spark."),
    "queue": ("penstock.cli.queue", "Create, list, change and delete queues."),
    "restore": ("penstock.cli.restore", "Restore a backup."),
    "serve": ("penstock.cli.serve", "Serve queues over HTTP."),
    "stats": ("penstock.cli.stats", "Show counts, ages and rates of queues."),
    "stream": ("penstock.cli.stream", "Append to, read, follow and repair streams."),
    "workers": ("penstock.cli.workers", "List servers and consumers, with the leases they hold."),
}


def _show_version(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        click.echo(f"penstock, version {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show version."
)
def cli() -> None:
    """The message queue that grows with your program.

    Commands talk to a server (--url or PENSTOCK_URL, by default http://127.0.0.1:8888; --token or PENSTOCK_TOKEN) or,
    with --db PATH or --data DIR, directly to a queue file. All but serve, demo and completion take --json.
    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 partly done, 4 not authorised, 5 server not reachable.
    """


def main() -> None:
    _replace_closed_streams()
    os.umask(0o077)  # Only the user can read the files a command writes.
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except PenstockError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        # If stdout is what is full, the interpreter's own flush at exit would fail again and print a traceback.
        sys.stdout = None
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _replace_closed_streams() -> None:
    """Open /dev/null for each standard stream that the parent closed (`>&-`).

    Otherwise the next file that is opened would get its file descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _print_error(error: click.ClickException) -> None:
    """Print the error on one line, with a hint."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = "".join(letter if letter.isprintable() else " " for letter in error.format_message())
    text = " ".join(text.split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f" (try '{error.ctx.command_path} --help')"
    click.echo(f"error: {text}", err=True)
