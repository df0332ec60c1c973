"""Nonsense for everything that reads what others wrote: requests, files of a log, events, the command line."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from penstock.cli import cli
from penstock.errors import Damaged, PenstockError
from penstock.journal.events import decode_events
from penstock.log.arrow import batches
from penstock.log.check import check, repair
from penstock.log.log import Log
from penstock.log.reader import LogReader
from tests.conformance.replay import log_events
from tests.integration.command_line import Result, penstock
from tests.proof.world import WORLDS
from tests.robustness.fuzz_http import fuzz
from tests.unit.log.support import assert_true, make, read_all

RECORDS = 300
WORDS = ["jobs", "1", "-1", "0", "1:x", "--", "-", "", "none", "\x00", "ż", "1e9", "{}", "null", "a=b", "9" * 30, "nan"]
WORDS += ["../..", "/no/such/place", "a b", "%s", "\udcff", "1970-01-01", "-1e308", "true", "a/b/c", "x" * 5_000]
STARTS = {"serve", "bench", "pipeline"}
"""Commands that would go on for long: they are given only what must be refused."""
CODES = {0, 1, 2, 3, 4, 5}


def mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at : at + 8] = chance.choice((b"\0", b"\xff", b"\x80")) * 8
            case 2:
                changed[at:at] = chance.randbytes(chance.randrange(1, 64))
            case 3:
                del changed[at : at + chance.randrange(1, 64)]
            case 4:
                del changed[at:]
            case _:
                begin = chance.randrange(len(changed) + 1)
                changed[at : at + 512] = changed[begin : begin + 512]
    return bytes(changed)


def fuzz_logs(folder: Path, seed: int, rounds: int) -> int:
    """Whatever is done to a log's files: what is served is true, and what is not is a typed error."""
    chance, sound = random.Random(seed), make(folder / "sound", RECORDS)
    for _ in range(rounds):
        hurt = Path(shutil.copytree(sound, folder / "hurt"))
        path = chance.choice(sorted(each for each in hurt.iterdir() if each.stat().st_size))
        path.write_bytes(mutate(path.read_bytes(), chance))
        try:
            with suppress(PenstockError), LogReader(hurt) as reader:
                assert_true(read_all(reader)[0])
            with suppress(PenstockError), LogReader(hurt) as reader:
                for batch in batches(reader, reader.first_offset):
                    assert_true(dict(zip(batch["offset"].to_pylist(), batch["data"].to_pylist(), strict=True)))
            with suppress(PenstockError):
                check(hurt, "s")
                repair(hurt, "s")
            with suppress(PenstockError), Log(hurt) as log:
                assert_true({o: d for o, d in read_all(log)[0].items() if o < RECORDS and d})
        except Exception as error:
            error.add_note(f"{path.name}, seed {seed}")
            raise
        shutil.rmtree(hurt)
    return rounds


def fuzz_events(seed: int, rounds: int, payloads: list[tuple[int, bytes]]) -> int:
    """Events of records that were changed: decoded, or said to be damaged."""
    chance = random.Random(seed)
    for _ in range(rounds):
        kind, payload = chance.choice(payloads)
        with suppress(Damaged):
            list(decode_events(0, 0, chance.choice((kind, chance.randrange(256))), mutate(payload, chance)))
    return rounds


def recorded(folder: Path) -> list[tuple[int, bytes]]:
    """Records of a journal."""
    list(log_events(folder))
    with LogReader(folder) as reader:
        return [(record.kind, record.data) for record in reader.read(reader.first_offset, RECORDS).records]


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def fuzz_cli(folder: Path, seed: int, rounds: int) -> dict[str, int]:
    """Every command with options of its own and values of ours: an exit code of the list, and never a traceback."""
    chance, ran = random.Random(seed), dict[str, int]()
    file = str(folder / "q.db")
    assert penstock("queue", "add", "--name", "jobs", "--db", file).code == 0
    for path, command in commands():
        for _ in range(rounds):
            arguments = [*path, *_arguments(command, chance)]
            if path[0] in STARTS:
                arguments.append("--no-such-option")
            elif chance.random() < 0.8:
                arguments += ["--db", file]
            _check_told(arguments, penstock(*arguments, stdin=chance.choice((b"", b"{}\n", b"\xff\x00"))))
        ran[" ".join(path)] = rounds
    return ran


def _arguments(command: click.Command, chance: random.Random) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name in ("db", "data", "url", "wait", "follow", "watch", "timeout"):
            continue  # Where to look is ours to say, and nothing here is waited for.
        wanted = parameter.required or chance.random() < 0.3
        if not wanted:
            continue
        if isinstance(parameter, click.Option):
            yield chance.choice(parameter.opts)
            if parameter.is_flag:
                continue
        yield chance.choice(WORDS)


def _check_told(arguments: list[str], told: Result) -> None:
    assert told.code in CODES, (arguments, told)
    assert "Traceback" not in told.err, (arguments, told)


def fuzz_http(store: str, folder: Path, seed: int, examples: int) -> int:
    """Every face, as /openapi.json describes it."""
    settings = {"wait_ms_max": 50, "wait_ms_default": 50, "payload_bytes": 100_000}
    world = WORLDS[store](folder / "world", random.Random(seed), broken=False, **settings)
    try:
        flags = ["--max-examples", str(examples), "--phases", "coverage,fuzzing,stateful", "--seed", str(seed)]
        requests, _ = fuzz(world.servers[0].port, folder, *flags)
        world.wait_until_healed()
    finally:
        world.close()
    return requests


def run(store: str, folder: Path, seed: int, size: int) -> dict[str, int | float]:
    """`size` 1 takes seconds, 100 takes many minutes."""
    begun = time.monotonic()
    done: dict[str, int | float] = {}
    with_log = folder / "log"
    with_log.mkdir(parents=True)
    done["logs changed and read"] = fuzz_logs(with_log, seed, 10 * size)
    done["commands of the command line"] = sum(fuzz_cli(folder, seed, size).values())
    done["requests"] = fuzz_http(store, folder, seed, size)
    done["seconds"] = round(time.monotonic() - begun, 1)
    return done
