"""Every documented command runs as typed, over HTTP and on a file."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import PENSTOCK, Queues, clean_environment, penstock, server

LINES = r"""
 sqew serve # Will host a new sqew service at port 8888 by default
 sqew --help # Displays help information
 sqew --version # Shows version information
 sqew queue list # List available queues
 sqew queue add --name {name} --max-attempts <max_attempts:5> --visibility-ms <30000> # Adds a new queue
 sqew queue rm --name {name} # Delete a queue
 sqew queue requeue-dlq --name {name} # Requeue DLQ items to Queue
 sqew queue show --name {name} # Show information and stats about the queue
 sqew queue purge --name {name} # Purge messages from queue
 sqew queue peek --name {name} --limit <n> # Peek N items from queue
 sqew queue compact --name {name}
 sqew message remove --queue {name} --id <id> # Remove messages from queue by id
 sqew message peek --queue {name} --id <id> # Peek message from queue by id
 sqew message get --queue {name} --batch <n> # Get message(s), default is 1>
 sqew message enqueue --queue {name} --file <json_file> --payload <json> --idempotency-key <key> # enqueue messages from a newline-delimited JSON file
 sqew message poll --queue {name} --batch <n> # poll/lease up to n messages
 sqew message ack --queue {name} --ids <id1,id2,...> # acknowledge multiple messages
 sqew message nack --queue {name} --ids <id1,id2,...> [--delay-ms <ms>] # nack multiple messages
 sqew message extend-lease --queue {name} --id <id> --ms <duration> # Extend lease of message
 sqew dlq list --queue {name} #(list DLQ messages for a queue)
 sqew dlq purge --queue {name} #(purge DLQ messages)
 sqew dlq requeue --queue {name} #(requeue DLQ messages to main queue)
 sqew stats --queue {name} #(show queue stats)
 sqew health # (check service health)
 sqew metrics # (show metrics in Prometheus format)
"""  # noqa: E501
ONLY_OF_A_SERVER = ("health", "metrics")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server with the first documented line, but on a free port, because 8888 may be in use."""
    with server(tmp_path_factory.mktemp("typed")) as address:
        yield address


@pytest.fixture(params=["http", "db"])
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Queues:
    if request.param == "http":
        return Queues(("--url", request.getfixturevalue("url")), "http")
    return Queues(("--db", str(tmp_path / "q.db")), "db")


class DocumentedCommands:
    """Runs documented command lines as a user would type them."""

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues = queues
        self._name = name
        self.unused = [line.strip() for line in LINES.strip().splitlines()]

    def type(self, start: str, **values: str) -> str:
        """Run the documented line that starts like this, with its <placeholders> filled in, and return its output."""
        [line] = [each for each in self.unused if each.startswith(f"sqew {start}")]
        self.unused.remove(line)
        typed = line.partition(" #")[0].replace("sqew", "penstock").replace("{name}", self._name)
        for placeholder, value in values.items():
            for written in (f"<{placeholder}>", f"<{placeholder}:5>", f"<{placeholder}1,{placeholder}2,...>"):
                typed = typed.replace(written, value)
        typed = typed.replace("<30000>", "30000").replace("[", "").replace("]", "")
        assert "<" not in typed
        program, *arguments = shlex.split(typed)
        assert program == "penstock"
        flags = () if start.startswith("--") else self._queues.flags
        result = penstock(*arguments, *flags)
        assert result.code == 0, (typed, result)
        return result.out


def test_every_command_runs_as_typed(queues: Queues, tmp_path: Path) -> None:
    typed = DocumentedCommands(queues, "emails")
    file = tmp_path / "messages.ndjson"
    file.write_text("".join(f'{{"n": {number}}}\n' for number in range(9)))

    assert "Usage: penstock" in typed.type("--help")
    assert typed.type("--version").startswith("penstock, version ")
    if queues.kind == "db":
        queues.ok("queue", "add", "--name", "first")
    typed.type("queue list")
    assert "emails.dlq" in typed.type("queue add", max_attempts="2")
    assert "added       10" in typed.type("message enqueue", json_file=str(file), json="'{\"a\": 1}'", key="k")
    first = queues.json("queue", "peek", "--name", "emails", "--limit", "10")["messages"][0]["id"]
    ids = [str(first + number) for number in range(10)]
    assert '{"a":1}' in typed.type("queue peek", n="3")
    assert '{"n":0}' in typed.type("message peek", id=ids[1])
    typed.type("message remove", id=ids[1])
    assert '{"a":1}' in typed.type("message get", n="1")
    assert all(each in shown for shown in [typed.type("message poll", n="4")] for each in ids[2:6])
    typed.type("message extend-lease", id=ids[2], duration="60000")
    assert typed.type("message ack", id=f"{ids[2]},{ids[3]}").count("ok") == 2
    assert typed.type("message nack", id=f"{ids[4]},{ids[5]}", ms="1000").count("scheduled") == 2
    assert "ready          4" in typed.type("queue show")
    assert "scheduled      2" in typed.type("stats")
    typed.type("dlq list")
    typed.type("dlq requeue")
    typed.type("queue requeue-dlq")
    typed.type("dlq purge")
    typed.type("queue compact")
    assert "purged  6" in typed.type("queue purge")
    assert "dropped   emails" in typed.type("queue rm")
    if queues.kind == "http":
        assert "ready    yes" in typed.type("health")
        assert "# TYPE penstock_" in typed.type("metrics")
    left = [line.partition(" #")[0] for line in typed.unused]
    assert left == ["sqew serve", *(f"sqew {name}" for name in ONLY_OF_A_SERVER if queues.kind == "db")]


def test_a_shell_script_can_chain_commands(url: str, tmp_path: Path) -> None:
    """Without a terminal no command prompts, so ids and tokens can be piped between commands."""
    script = """
        set -eo pipefail
        penstock queue add --name shell --visibility-ms 30000 > made
        printf '%s\n' 1 '"two"' '{"three": [3]}' | penstock message enqueue --queue shell --file -
        penstock message poll --queue shell --batch 3 --json > leased
        python -c '
import json
for message in json.load(open("leased"))["messages"]:
    print(message["id"], message["token"], sep=":")' | penstock message ack --queue shell --ids -
        penstock queue rm --name shell
    """
    path = f"{Path(PENSTOCK).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(PENSTOCK_URL=url, PATH=path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" ok") == 3
    assert "dropped   shell" in done.stdout
