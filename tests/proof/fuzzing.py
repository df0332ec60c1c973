"""Fuzzes every parser of external input: requests, JSON, the files of a log, the command line."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from penstock.cli import cli
from penstock.errors import PenstockError
from penstock.log.arrow import batches
from penstock.log.check import check, repair
from penstock.log.reader import LogReader
from penstock.log.writer import Log
from tests.integration.command_line import Result, penstock
from tests.proof import damage
from tests.proof.http_bytes import fuzz_parser, fuzz_server
from tests.proof.json_bodies import fuzz_json
from tests.proof.world import WORLDS
from tests.robustness.fuzz_http import fuzz
from tests.unit.log.support import assert_true, make, read_all

RECORDS = 300
WORDS = ["jobs", "1", "-1", "0", "1:x", "--", "-", "", "none", "ż", "1e9", "{}", "null", "a=b", "9" * 30, "nan"]
WORDS += ["../..", "/no/such/place", "a b", "%s", "\udcff", "1970-01-01", "-1e308", "true", "a/b/c", "x" * 5_000]
# Commands that would not return soon; they get an option that they must refuse.
LONG_RUNNING = {"serve", "demo", "bench", "pipeline", "tail"}
# A URL without a server, so that the commands cannot reach a real one.
NO_SERVER = {"PENSTOCK_URL": "http://127.0.0.1:1"}
EXIT_CODES = {0, 1, 2, 3, 4, 5}


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
    """Read logs with mutated files: every served record is correct, and everything else is a typed error."""
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
    """Run every command with its own options and random values; expect a known exit code and no traceback."""
    chance, ran = random.Random(seed), dict[str, int]()
    file = str(folder / "q.db")
    assert penstock("queue", "add", "--name", "jobs", "--db", file).code == 0
    # Some of the random values are file names.
    with contextlib.chdir(folder):
        for path, command in commands():
            for _ in range(rounds):
                arguments = [*path, *_arguments(command, chance)]
                if LONG_RUNNING & {*path}:
                    arguments.append("--no-such-option")
                elif chance.random() < 0.8:
                    arguments += ["--db", file]
                stdin = chance.choice((b"", b"{}\n", b"\xff\x00"))
                _check_result(arguments, penstock(*arguments, stdin=stdin, env=NO_SERVER))
            ran[" ".join(path)] = rounds
    return ran


def _arguments(command: click.Command, chance: random.Random) -> Iterator[str]:
    for parameter in command.params:
        name = str(parameter.name)
        if name in ("db", "data", "url") or "wait" in name or "follow" in name:
            continue  # The caller chooses the store, and no command may block.
        wanted = parameter.required or chance.random() < 0.3
        if not wanted:
            continue
        if isinstance(parameter, click.Option):
            yield chance.choice(parameter.opts)
            if parameter.is_flag:
                continue
        yield chance.choice(WORDS)


def _check_result(arguments: list[str], result: Result) -> None:
    assert result.code in EXIT_CODES, (arguments, result)
    assert "Traceback" not in result.err, (arguments, result)


def fuzz_http(store: str, folder: Path, seed: int, examples: int) -> tuple[int, int]:
    """Fuzz every API by its OpenAPI document, then with raw bytes; return the numbers of requests and responses."""
    settings = {"wait_ms_max": 50, "wait_ms_default": 50, "payload_bytes": 100_000}
    world = WORLDS[store](folder / "world", random.Random(seed), faulty=False, **settings)
    try:
        flags = ["--max-examples", str(examples), "--phases", "coverage,fuzzing,stateful", "--seed", str(seed)]
        requests, _ = fuzz(world.servers[0].port, folder, *flags)
        answers = fuzz_server(world.servers[0].port, seed, 100 * examples)
        world.wait_until_healed()
    finally:
        world.close()
    return requests, answers


def run(store: str, folder: Path, seed: int, size: int) -> dict[str, int | float]:
    """Run every fuzzer. Size 1 takes seconds, size 100 takes many minutes."""
    begun = time.monotonic()
    done: dict[str, int | float] = {}
    with_log = folder / "log"
    with_log.mkdir(parents=True)
    done["logs mutated and read"] = fuzz_logs(with_log, seed, 10 * size)
    hurt = damage.run(folder / "damage", seed, max(1, size // 10))
    done["logs damaged and read"] = hurt.cases.total()
    done["records intact in them"] = hurt.intact
    done["wrong records served or intact ones lost"] = len(hurt.violations)
    if hurt.violations:
        raise AssertionError("\n".join(hurt.violations[:50]))
    done["command lines"] = sum(fuzz_cli(folder, seed, size).values())
    done["JSON bodies"] = fuzz_json(seed, 1_000 * size)
    done["raw requests parsed"] = fuzz_parser(seed, 4_000 * size)
    done["requests"], done["responses to raw requests"] = fuzz_http(store, folder, seed, size)
    done["seconds"] = round(time.monotonic() - begun, 1)
    return done
