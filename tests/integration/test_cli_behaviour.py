"""Exit codes, one-line errors, terminals, pipes and interruptions of the command line."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import COMMANDS
from tests.integration.command_line import PENSTOCK, Queues, clean_environment, penstock, server, spawn

TOKEN = "the-admins-token"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("server"), AUTH_TOKEN=TOKEN) as address:
        yield address


@pytest.fixture(scope="module")
def admin(url: str) -> Queues:
    queues = Queues(("--url", url, "--token", TOKEN), "http")
    queues.ok("queue", "add", "--name", "jobs")
    return queues


@pytest.fixture
def file(tmp_path: Path) -> Queues:
    queues = Queues(("--db", str(tmp_path / "q.db")), "db")
    queues.ok("queue", "add", "--name", "jobs")
    return queues


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


def test_a_missing_or_wrong_token_is_unauthorized(url: str, admin: Queues) -> None:
    for flags in ((), ("--token", "wrong"), ("--token", "pk_000000000000_x")):
        refused = penstock("queue", "list", "--url", url, *flags)
        assert (refused.code, refused.out) == (4, "")
        assert refused.err.count("\n") == 1
        assert "(set --token or PENSTOCK_TOKEN)" in refused.err
    assert penstock("queue", "list", env={"PENSTOCK_URL": url, "PENSTOCK_TOKEN": TOKEN}).code == 0


def test_a_key_grants_only_its_rights_on_its_queue(url: str, admin: Queues) -> None:
    key = admin.json("key", "add", "--queue", "jobs", "--right", "push")["key"]
    holder = Queues(("--url", url, "--token", key), "http")
    assert holder.json("message", "enqueue", "--queue", "jobs", "--payload", "1")["added"] == 1
    for denied in (("message", "poll", "--queue", "jobs"), ("queue", "list"), ("queue", "purge", "--name", "jobs")):
        assert holder.run(*denied).code == 4
    consumer = admin.json("key", "add", "--queue", "jobs", "--right", "consume")["key"]
    worker = Queues(("--url", url, "--token", consumer), "http")
    [leased] = worker.json("message", "poll", "--queue", "jobs")["messages"]
    assert worker.run("message", "ack", "--queue", "jobs", "--ids", str(leased["id"])).code == 4
    worker.ok("message", "ack", "--queue", "jobs", "--ids", f"{leased['id']}:{leased['token']}")


def test_only_health_needs_no_token(url: str, admin: Queues) -> None:
    health = penstock("health", "--url", url, "--json")
    assert health.json["ready"]
    assert health.json["checks"] == dict.fromkeys(("store", "writes", "disk", "wal", "journal", "logs"), "ok")
    assert penstock("metrics", "--url", url).code == 4
    samples = admin.json("metrics")["metrics"]
    assert any(sample["labels"].get("route") == "/queues" and sample["value"] > 0 for sample in samples)


def test_a_missing_server_is_reported_as_unreachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for command in (("queue", "list"), ("health",), ("metrics",), ("message", "get", "--queue", "q"), ("bench",)):
        lost = penstock(*command, "--url", f"http://127.0.0.1:{port}")
        assert (lost.code, lost.out) == (5, "")
        assert lost.err.startswith(f"error: cannot reach http://127.0.0.1:{port}: Connection refused (")
    assert penstock("queue", "list", "--url", "http://no.such.host.invalid").code == 5


def test_a_server_that_is_not_penstock_is_reported_in_one_line(silent_server: socket.socket) -> None:
    silent_server.setblocking(True)
    port = silent_server.getsockname()[1]
    for answer in (b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b""):
        process = spawn("queue", "list", "--url", f"http://127.0.0.1:{port}", stderr=subprocess.PIPE)
        connection, _ = silent_server.accept()
        connection.recv(65_536)
        connection.sendall(answer)
        connection.close()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 5
        assert err.startswith(b"error: ")
        assert err.count(b"\n") == 1


def test_flags_override_the_environment_the_file_and_defaults(url: str, admin: Queues, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    good = tmp_path / "good.toml"
    good.write_text(f'[client]\nurl = "{url}"\ntoken = "{TOKEN}"\n')
    bad = tmp_path / "bad.toml"
    bad.write_text(f'[client]\nurl = "{nowhere}"\n')
    listing = ("queue", "list")
    assert penstock(*listing, env={"PENSTOCK_CONFIG": str(good)}).code == 0
    assert penstock(*listing, env={"PENSTOCK_CONFIG": str(good), "PENSTOCK_URL": nowhere}).code == 5
    environment = {"PENSTOCK_CONFIG": str(bad), "PENSTOCK_URL": url, "PENSTOCK_TOKEN": TOKEN}
    assert penstock(*listing, env=environment).code == 0
    assert penstock(*listing, "--url", nowhere, env=environment).code == 5
    assert penstock(*listing, "--url", url, "--token", TOKEN, env={"PENSTOCK_URL": nowhere}).code == 0
    port = url.rpartition(":")[2]
    assert penstock(*listing, env={"PENSTOCK_PORT": port, "AUTH_TOKEN": TOKEN}).code == 0
    assert penstock(*listing, "--url", url, env={"AUTH_TOKEN": TOKEN}).code == 4, (
        "a token is sent only to its own server"
    )


def test_a_pipe_gets_plain_text(file: Queues) -> None:
    file.ok("message", "enqueue", "--queue", "jobs", "--payload", '"\\u001b[31mred\\u0007"')
    file.ok("message", "enqueue", "--queue", "jobs", "--payload", "1", "--header", "\x1b[2J=\x1b]0;x")
    for command in (("queue", "list"), ("queue", "peek", "--name", "jobs"), ("message", "peek", "--queue", "jobs")):
        flags = ("--id", "2") if command[1:2] == ("peek",) and command[0] == "message" else ()
        done = subprocess.run([PENSTOCK, *command, *flags, *file.flags], env=clean_environment(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
        assert b"\x07" not in done.stdout


def on_a_terminal(*arguments: str, answer: bytes | signal.Signals | None = None) -> tuple[int, str]:
    """Run on a terminal and answer the prompt. Return the exit code and the output."""
    ours, theirs = pty.openpty()
    env = clean_environment(TERM="xterm-256color", COLUMNS="200")
    process = subprocess.Popen([PENSTOCK, *arguments], env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux reports an error when the last process has closed the terminal.
        prompted = False
        while True:
            quiet = not select.select([ours], [], [], 1)[0]
            if not quiet:
                shown += os.read(ours, 65_536)
            first, prompted = not prompted and b"[y/N]" in shown, b"[y/N]" in shown
            if first and isinstance(answer, bytes):
                os.write(ours, answer)
            elif answer is signal.SIGINT and (first or (prompted and quiet)):
                # A signal that arrives just before a read begins is noticed only by the next read.
                process.send_signal(signal.SIGINT)
    os.close(ours)
    return process.wait(60), shown.decode()


def test_a_terminal_gets_a_table(file: Queues) -> None:
    code, shown = on_a_terminal("queue", "list", *file.flags)
    assert code == 0
    assert "\x1b[" in shown
    assert "──" in shown
    code, shown = on_a_terminal("queue", "list", "--json", *file.flags)
    assert '"name":"jobs"' in shown
    assert "\x1b" not in shown


def test_a_destructive_command_on_a_terminal_asks_first(file: Queues) -> None:
    file.ok("message", "enqueue", "--queue", "jobs", "--payload", "1")
    code, shown = on_a_terminal("queue", "rm", "--name", "jobs", "--force", *file.flags, answer=b"n\n")
    assert (code, "Delete the queue jobs and all its messages? [y/N]" in shown) == (1, True)
    assert file.json("stats", "--queue", "jobs")["ready"] == 1
    code, _ = on_a_terminal("queue", "purge", "--name", "jobs", *file.flags, answer=b"y\n")
    assert code == 0
    assert file.json("stats", "--queue", "jobs")["ready"] == 0
    code, shown = on_a_terminal("dlq", "purge", "--queue", "jobs", "--yes", *file.flags)
    assert (code, "[y/N]" in shown) == (0, False)
    code, shown = on_a_terminal("queue", "rm", "--name", "jobs", *file.flags, answer=signal.SIGINT)
    assert (code, "Traceback" in shown) == (130, False)
    assert file.run("queue", "show", "--name", "jobs").code == 0


def in_a_shell(file: Queues, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `p` is the command on the file."""
    words = [f'p() {{ {PENSTOCK} "$@" {" ".join(file.flags)}; }}', line]
    return subprocess.run(["bash", "-c", "\n".join(words)], env=clean_environment(), capture_output=True, text=True)


def test_a_destructive_command_reads_its_confirmation_from_stdin(file: Queues) -> None:
    file.ok("message", "enqueue", "--queue", "jobs", "--payload", "1")
    refused = in_a_shell(file, "echo n | p queue purge --name jobs")
    assert (refused.returncode, "nothing was changed" in refused.stderr) == (1, True)
    unclear = in_a_shell(file, "echo emails | p queue purge --name jobs")
    assert (unclear.returncode, "expected y or n on stdin, got 'emails'" in unclear.stderr) == (1, True)
    assert in_a_shell(file, "echo n | p message remove --queue jobs --id 1").returncode == 1
    assert in_a_shell(file, "echo | p queue rm --name jobs --force").returncode == 1
    assert file.json("stats", "--queue", "jobs")["ready"] == 1
    assert in_a_shell(file, "echo y | p queue purge --name jobs").stdout.split() == ["purged", "1"]
    assert in_a_shell(file, "echo n | p queue purge --name jobs --yes").returncode == 0


def test_a_destructive_command_in_a_script_needs_no_confirmation(file: Queues) -> None:
    assert in_a_shell(file, "p queue purge --name jobs < /dev/null").returncode == 0
    silent_server = [PENSTOCK, "queue", "purge", "--name", "jobs", *file.flags]
    with subprocess.Popen(
        silent_server, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=clean_environment()
    ) as process:
        assert process.wait(60) == 0
    names = Path(file.flags[1]).parent / "names"
    names.write_text("jobs\nother\nlast\n")
    for name in ("other", "last"):
        file.ok("queue", "add", "--name", name)
    loop = in_a_shell(file, f"while read name; do p queue purge --name $name; done < {names}")
    assert (loop.returncode, loop.stdout.split()) == (0, ["purged", "0"] * 3)


def test_a_dry_run_prints_what_would_be_purged(file: Queues) -> None:
    file.ok("message", "enqueue", "--queue", "jobs", "--payload", "1")
    for command in (("queue", "purge", "--name"), ("dlq", "purge", "--queue")):
        shown = file.ok(*command, "jobs", "--dry-run")
        assert shown.split()[:2] == ["would", "purge"]
    assert file.json("stats", "--queue", "jobs")["ready"] == 1


def test_a_progress_bar_is_drawn_on_a_terminal_only(file: Queues, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 2_000)
    command = ("message", "enqueue", "--queue", "jobs", "--file", str(lines))
    code, shown = on_a_terminal(*command, *file.flags)
    assert (code, "enqueue" in shown, "2000/2000" in shown) == (0, True, True)
    piped = file.run(*command)
    assert "━" not in piped.out + piped.err


def until_asleep(pid: int) -> None:
    """Wait until the process sleeps: Python loses an interrupt that arrives while an object is finalized."""
    asleep = 0
    while asleep < 3:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.01)


def test_an_interrupt_gives_exit_code_130_and_no_traceback(silent_server: socket.socket) -> None:
    port = silent_server.getsockname()[1]
    process = spawn(
        *("message", "poll", "--queue", "q", "--wait-ms", "60000", "--url", f"http://127.0.0.1:{port}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    connection, _ = silent_server.accept()
    assert connection.recv(65_536).startswith(b"POST /queues/q/poll?")
    until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    connection.close()
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


@pytest.mark.parametrize(
    ("lacking", "command", "extra"),
    [
        ("psycopg", "migrate-store {file} postgresql://x@127.0.0.1:1/x", "postgres"),
        ("pyspark", "demo --spark --port 0 --no-browser", "spark"),
    ],
)
def test_a_missing_extra_is_named(file: Queues, lacking: str, command: str, extra: str) -> None:
    code = f"import sys; sys.modules[{lacking!r}] = None; from penstock.cli import main; main()"
    words = command.format(file=file.flags[1]).split()
    done = subprocess.run([sys.executable, "-c", code, *words], env=clean_environment(), capture_output=True, text=True)
    expected = f"error: this needs penstock-mq[{extra}] (pip install 'penstock-mq[{extra}]')\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize(
    "flags",
    [("--port", "99999"), ("--port", "-1"), ("--tls-cert", __file__), ("--port", "0", "--store", "foo://x")],
)
def test_serving_with_invalid_options_is_a_usage_error(flags: tuple[str, ...], tmp_path: Path) -> None:
    refused = penstock("serve", *flags, env={"PENSTOCK_DATA": str(tmp_path)})
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_a_value_out_of_range_names_its_option(file: Queues, admin: Queues) -> None:
    for queues in (file, admin):
        refused = queues.run("message", "enqueue", "--queue", "jobs", "--payload", "1", "--priority", "9" * 20)
        assert (refused.code, refused.err.startswith("error: priority")) == (2, True)


BEGINNING = """
import signal, sys
signal.signal(signal.SIGINT, {handler})
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from penstock.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("handler", "code"),
    [("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0)],
    ids=["handled", "ignored"],
)
def test_an_interrupt_during_startup_shows_no_traceback(handler: str, code: int) -> None:
    begun = [sys.executable, "-c", BEGINNING.format(handler=handler), "--help"]
    done = subprocess.run(begun, env=clean_environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--help >&-", 0),
        ("stats {flags} >&-", 0),
        ("message ack --queue jobs --ids - {flags} <&-", 2),
        ("message enqueue --queue jobs --payload - {flags} <&-", 2),
        ("queue show --name nowhere {flags} >&- 2>&-", 1),
    ],
)
def test_a_closed_standard_stream_is_treated_as_empty(file: Queues, command: str, code: int) -> None:
    shell = f"{sys.executable} -m penstock {command.format(flags=' '.join(file.flags))}"
    done = subprocess.run(["bash", "-c", shell], env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr, "unexpected" in done.stderr) == (code, False, False)
    assert done.stderr.count("\n") <= 1


def test_a_full_disk_behind_stdout_is_a_one_line_error(file: Queues) -> None:
    shell = f"{sys.executable} -m penstock queue list {' '.join(file.flags)} >/dev/full"
    done = subprocess.run(["bash", "-c", shell], env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_a_closed_pipe_prints_no_error(file: Queues) -> None:
    lines = "".join(f'"{"x" * 500}{number}"\n' for number in range(1_000)).encode()
    file.ok("message", "enqueue", "--queue", "jobs", "--file", "-", stdin=lines)
    for command in ("export --queue jobs", "queue peek --name jobs --limit 1000"):
        shell = f"{PENSTOCK} {command} {' '.join(file.flags)} | head -c 10; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], env=clean_environment(), capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (141, b"")
        assert len(done.stdout) == 10


def test_every_command_has_help() -> None:
    top = penstock("--help")
    assert top.code == 0
    for noun in COMMANDS:
        assert f"\n  {noun} " in top.out
        shown = penstock(noun, "--help")
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith(f"Usage: penstock {noun} ")


def test_client_commands_import_only_what_they_use() -> None:
    """Rich, asyncio and SQLite are slow to import, and a command that talks to a server needs none of them."""
    code = """
import sys
sys.argv = ["penstock", "queue", "list", "--url", "http://127.0.0.1:1"]
from penstock.cli import main
try:
    main()
except SystemExit as leaving:
    assert leaving.code == 5
print(*{"asyncio", "uvicorn", "prometheus_client", "rich", "sqlite3", "penstock.broker.broker"} & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_commands_on_a_file_do_not_import_server_streams_or_http(file: Queues) -> None:
    code = f"""
import sys
sys.argv = ["penstock", "queue", "list", *{file.flags!r}]
from penstock.cli import main
try:
    main()
except SystemExit as leaving:
    assert leaving.code == 0
needless = ("asyncio", "rich", "ssl", "penstock.server", "penstock.log.streams", "penstock.client._sync.http_session")
print(*{{*needless}} & {{*sys.modules}}, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
