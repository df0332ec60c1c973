"""Invalid arguments get a one-line error and exit code 2, never a traceback."""

from __future__ import annotations

import random
import string

import pytest

from penstock.cli import COMMANDS
from tests.integration.command_line import Queues, penstock


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Queues:
    queues = Queues(("--db", str(tmp_path_factory.mktemp("nonsense") / "q.db")), "db")
    queues.ok("queue", "add", "--name", "jobs")
    return queues


NONSENSE = [
    ("nonsense",),
    ("queue",),
    ("queue", "nonsense"),
    ("queue", "list", "--nonsense"),
    ("queue", "list", "extra"),
    ("queue", "list", "--url", "not a url"),
    ("queue", "list", "--url", "ftp://host"),
    ("queue", "list", "--url", "http://host:99999"),
    ("queue", "list", "--url", "http://127.0.0.1:1", "--token", "two\nlines"),
    ("queue", "list", "--url", "http://h", "--db", "x"),
    ("queue", "list", "--db", "x", "--data", "y"),
    ("queue", "add"),
    ("queue", "add", "--name", ""),
    ("queue", "add", "--name", "two words"),
    ("queue", "add", "--name", "two/parts"),
    ("queue", "add", "--name", "q", "--max-attempts", "0"),
    ("queue", "add", "--name", "q", "--max-attempts", "many"),
    ("queue", "add", "--name", "q", "--visibility-ms", "-1"),
    ("queue", "add", "--name", "q", "--visibility-ms", "1", "--lease-ms", "1"),
    ("queue", "add", "--name", "q", "--backoff", "sometimes"),
    ("queue", "add", "--name", "q", "--push-rate", "nan"),
    ("queue", "add", "--name", "q", "--ttl-ms", str(1 << 70)),
    ("queue", "set", "--name", "q"),
    ("queue", "peek", "--name", "q", "--limit", "0"),
    ("queue", "peek", "--name", "q", "--state", "asleep"),
    ("message", "poll"),
    ("message", "poll", "--queue", "q", "--batch", "0"),
    ("message", "poll", "--queue", "q", "--batch", "99999"),
    ("message", "ack", "--queue", "q", "--ids", ""),
    ("message", "ack", "--queue", "q", "--ids", ","),
    ("message", "ack", "--queue", "q", "--ids", "x:y"),
    ("message", "ack", "--queue", "q", "--ids", "1:"),
    ("message", "ack", "--queue", "q", "--ids", "0"),
    ("message", "ack", "--queue", "q", "--ids", "٣"),
    ("message", "ack", "--queue", "q", "--ids", "9" * 5_000),
    ("message", "nack", "--queue", "q", "--ids", "1", "--delay-ms", "-1"),
    ("message", "extend-lease", "--queue", "q", "--id", "1", "--ms", "0"),
    ("message", "remove", "--queue", "q", "--id", "1:token"),
    ("message", "peek", "--queue", "q", "--id", "1,2"),
    ("message", "enqueue", "--queue", "q"),
    ("message", "enqueue", "--queue", "q", "--payload", "{"),
    ("message", "enqueue", "--queue", "q", "--payload", ""),
    ("message", "enqueue", "--queue", "q", "--payload", "\udcff"),
    ("message", "enqueue", "--queue", "q", "--payload", "1", "--header", "novalue"),
    ("message", "enqueue", "--queue", "q", "--payload", "1", "--idempotency-key", "\udcff"),
    ("message", "enqueue", "--queue", "q", "--payload", "-", "--file", "-"),
    ("message", "enqueue", "--queue", "q", "--file", "/no/such/file"),
    ("dlq", "requeue", "--queue", "q", "--rate", "0"),
    ("key", "add", "--queue", "q", "--right", "all"),
    ("health", "--db", "x"),
    ("backup",),
    ("backup", "x"),
    ("restore", "/no/such/file", "--db", "x"),
    ("completion", "tcsh"),
    ("bench", "--messages", "0"),
]


@pytest.mark.parametrize("arguments", NONSENSE, ids=ascii)
def test_invalid_arguments_are_a_usage_error(arguments: tuple[str, ...], file: Queues) -> None:
    """The error comes before any server or file is used."""
    placed = {"--url", "--db", "--data"} & {*arguments} or arguments[0] in ("nonsense", "backup", "completion")
    refused = penstock(*arguments, *(() if placed or len(arguments) < 2 else file.flags))
    assert (refused.code, refused.out) == (2, "")
    assert "Traceback" not in refused.err
    if arguments != ("queue",):
        assert refused.err.startswith("error: ")
        assert refused.err.count("\n") == 1


def test_random_arguments_never_end_in_a_traceback(file: Queues) -> None:
    dice = random.Random(20_261_115)
    words = ["jobs", "1", "-1", "0", "1:x", "--", "-", "", "none", "\x00", "ż", "1e9", "{}", "null", "a=b", "9" * 30]
    for _ in range(300):
        noun = dice.choice([each for each in COMMANDS if each not in ("serve", "bench", "doctor", "restore", "backup")])
        verbs = [noun, *dice.choices(["list", "add", "show", "poll", "ack", "enqueue", "rm", "purge", "peek"], k=1)]
        flags = ["--name", "--queue", "--ids", "--id", "--payload", "--limit", "--json", "--batch", "--ms", "--header"]
        rest = [dice.choice(flags + words + [dice.choice(string.printable)]) for _ in range(dice.randrange(6))]
        outcome = penstock(*verbs, *rest, *file.flags)
        assert outcome.code in (0, 1, 2, 3), (verbs, rest, outcome)
        assert outcome.err.count("\n") <= 1 or "Usage:" in outcome.err, (verbs, rest, outcome)
