"""Migrates the store of a default server, and runs two versions on one store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.core.commands import Ack, Settled, SettleItem
from penstock.server.background import CANARY_QUEUE
from penstock.store.factory import open_store
from tests.crash import migration_rounds
from tests.integration.command_line import penstock as command
from tests.integration.serving import Process, clean_environment, process
from tests.postgres import cluster, drop_schema, new_schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_VERSION = """
try:
    from penstock.{name}.schema import SCHEMA_VERSION
except ModuleNotFoundError:
    from penstock.store.{name}.schema import SCHEMA_VERSION
print(SCHEMA_VERSION)
"""
# The last commit of the previous version. Set it to the release's commit with each release.
PREVIOUS = "d4da81a5a614b4835334ac779d6ea2be98a610ef"
# Shorter than the default 15 s, so that the canary also runs in a short test.
CANARY_MS = "200"
OTHER = {"sqlite": "postgresql", "postgresql": "sqlite"}
VERSION_SECONDS_MAX = 120


@contextmanager
def new_store(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/penstock.db"
        return
    schema = new_schema()
    try:
        yield f"{cluster().url}&schema={schema}"
    finally:
        drop_schema(schema)


# Migrating the store of a default server.


def move_used_store(kind: str, folder: Path, seconds: float, *, kill: bool) -> dict[str, Any]:
    """Use a server with default settings, stop it, then migrate its store to the other kind, use it, and back.

    Returns the report of `penstock migrate-store`.
    """
    with ExitStack() as stack:
        data, moved, back = (folder / name for name in ("data", "moved", "back"))
        for each in (data, moved, back):
            each.mkdir(parents=True)
        source, target, returned = (
            stack.enter_context(new_store(*each)) for each in ((kind, data), (OTHER[kind], moved), (kind, back))
        )
        use_server(source, data, seconds, kill=kill)
        before = contents(source)
        there = _move(source, target)
        expect_same(before, contents(target))
        assert _move(target, returned)["checksum"] == there["checksum"]
        expect_same(before, contents(returned))
        # Both results must still work as a server's store.
        use_server(target, moved, 0, kill=kill)
        use_server(returned, back, 0, kill=kill)
        return there


def _move(source: str, target: str) -> dict[str, Any]:
    done = command("migrate-store", source, target, "--json")
    assert done.code == 0, done
    report: dict[str, Any] = done.json
    return report


def use_server(store: str, folder: Path, seconds: float, *, kill: bool) -> None:
    with process(folder, "--store", store, env={"PENSTOCK_CANARY_MS": CANARY_MS}) as server:
        _use_every_api(server, seconds)
        if not kill:
            assert server.terminate() == 0


def _use_every_api(server: Process, seconds: float) -> None:
    """Write to every table for `seconds`, and at least until the canary has run three times."""
    end = time.monotonic() + seconds
    with server.client() as http, penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        orders = client.create_queue("orders", max_attempts=2, backoff_ms=0, exist_ok=True)
        mail = client.create_queue("shop/mail/out", archive_ms=None, push_rate=1e6, exist_ok=True)
        stream = client.create_stream("clicks", exist_ok=True)
        rounds = 0
        while rounds < 3 or time.monotonic() < end or _canary_rounds(http.get("/metrics").body) < 3:
            rounds += 1
            orders.push_many([{"order": number} for number in range(20)])
            orders.push("later", delay=3600)
            orders.push("urgent", priority=9, ttl=3600)
            orders.push("once", key=f"key-{rounds}")
            for number, message in enumerate(orders.lease(10)):
                if number % 3:
                    message.ack()
                else:
                    message.nack("no such customer")
            # Some of the open leases expire while the server runs, none during the migrations.
            orders.lease(1, lease=0.001)
            mail.push(b"\x00\xff", headers={"round": str(rounds)})
            for message in mail.lease():
                message.ack()
            stream.append(f"click {rounds}")
            stream.commit("reader", stream.read(limit=1).next - 1)
            http.post("/v1/messages", {"body": "a note", "topic": "notes"})
            http.get("/v1/messages?topic=notes")
            time.sleep(0.05)
            orders.lease(2, lease=3600)
        assert http.post("/queues/orders/keys", {"name": "shop", "rights": ["push"]}).status == 201


def _canary_rounds(metrics: bytes) -> float:
    lines = (line for line in metrics.decode().splitlines() if line.startswith("penstock_canary_rounds_total"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def contents(store: str) -> dict[str, Any]:
    """Return everything that a migration must keep, except the canary's messages, which expire after a minute."""
    with penstock.connect(store) as client:
        found: dict[str, Any] = {
            f"queue {info.name}": (info.options, info.ready, info.scheduled, info.leased, info.dead)
            for info in client.queues()
            if info.name != CANARY_QUEUE
        }
        for letter in client.queue("orders").dead_letters(1_000):
            found[f"dead letter {letter.id}"] = (letter.payload, letter.errors)
        for record in client.stream("clicks").read():
            found[f"click {record.offset}"] = record.data
        return found


def expect_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    differing = [
        f"{key}: {before.get(key)} became {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    assert not differing, "\n".join([f"{len(differing)} differ", *differing[:10]])


# Two versions on one store.


def sources_of(commit: str, folder: Path) -> Path:
    """Unpack `src` of a commit, and return the folder to put on PYTHONPATH."""
    done = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, f"git has no sources of {commit}: {done.stderr.decode()}"
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder / "src"


class Version:
    """A version of Penstock that scripts use in separate processes."""

    def __init__(self, sources: Path) -> None:
        self.sources = sources
        self.environment = clean_environment() | {"PYTHONPATH": str(sources)}

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", f"import json, os, sys\nimport penstock\n{script}", *arguments]
        return subprocess.Popen(
            words,
            env=self.environment,
            cwd=self.sources,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str) -> Any:
        return finish(self.start(script, *arguments))

    def schema(self, kind: str) -> int:
        name = {"sqlite": "sqlite", "postgresql": "postgres"}[kind]
        return int(self.run(SCHEMA_VERSION.format(name=name)))


def finish(running: subprocess.Popen[str]) -> Any:
    """Wait for a script and return the JSON that it printed."""
    out, err = running.communicate(timeout=VERSION_SECONDS_MAX)
    assert running.returncode == 0, err
    return json.loads(out)


THIS = Version(ROOT / "src")

SHARE = """
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with penstock.connect(url) as client:
    queue = client.create_queue("shared", lease_ms=600_000, exist_ok=True)
    print("ready", file=sys.stderr, flush=True)
    pushed = [queue.push({"by": name, "number": number}).id for number in range(count)]
    acked, idle = [], 0
    while idle < 3:
        messages = queue.lease(3, wait=0.5)
        idle = 0 if messages else idle + 1
        queue.ack_many(messages)
        acked += [message.id for message in messages]
print(json.dumps([pushed, acked]))
"""
REFUSED = """
try:
    penstock.connect(sys.argv[1]).queues()
except penstock.SchemaTooNew as error:
    print(json.dumps(str(error)))
"""


def use_with_previous(kind: str, folder: Path, count: int) -> str:
    """Run the previous version and this one on one store, and return how that ended.

    If their schemas are the same, both push, lease and ack at the same time. If this version's schema is newer, it
    takes over the store of the previous version, which then gets a typed error.
    """
    previous = Version(sources_of(PREVIOUS, folder / "previous"))
    with new_store(kind, folder) as url:
        pushed, acked = previous.run(SHARE, url, "first", str(count))
        if THIS.schema(kind) == previous.schema(kind):
            parts = [finish(each) for each in [v.start(SHARE, url, "both", str(count)) for v in (previous, THIS)]]
            outcome = "worked together"
        else:
            parts = [THIS.run(SHARE, url, "this", str(count))]
            assert "newer" in previous.run(REFUSED, url)
            outcome = "schema is newer: the previous version is refused"
        for their_pushed, their_acked in parts:
            pushed += their_pushed
            acked += their_acked
        assert sorted(acked) == sorted(pushed), "each message is acked once"
        with penstock.connect(url) as client:
            assert client.queue("shared").info().ready == 0
        return outcome


# A process of an older version that has the store open while it is migrated

OLDER = """
def try_all(calls):
    outcomes = {}
    for name, call in calls.items():
        try:
            outcomes[name] = [call(), None]
        except penstock.PenstockError as error:
            outcomes[name] = [None, f"{type(error).__name__}: {error}"]
    print(json.dumps(outcomes), flush=True)

with penstock.connect(sys.argv[1]) as client:
    queue = client.create_queue("orders", lease_ms=3_600_000)
    queue.push_many([{"number": number} for number in range(200)])
    leased = queue.lease(50)
    print(json.dumps([[message.id, message.token] for message in leased]), flush=True)
    for number, _ in enumerate(sys.stdin):
        try_all({
            "push": lambda: queue.push(f"late {number}").id,
            "lease": lambda: [[message.id, message.token] for message in queue.lease(2)],
            "ack": lambda: [len(queue.ack_many([leased[-1]])), leased[-1].id, leased.pop()][:2],
        })
"""
OPEN_AND_STOP = """
from tests.crash.migration_rounds import OldDatabase, OldFile, Step
(OldFile if sys.argv[1] == "sqlite" else OldDatabase).arm(Step("statement", int(sys.argv[3])))
from penstock.store.factory import open_store
open_store(sys.argv[2].removeprefix("sqlite:///"))
"""
BEFORE_COMMIT = {"sqlite": (13, 16, 19), "postgresql": (5, 8, 9)}
"""Statements of an opening process that all come before the commit of a migration."""


def _kill_at(kind: str, url: str, statement: int) -> None:
    """Kill a process of this version that opens the store, at a statement."""
    opener = Version(ROOT).start(OPEN_AND_STOP, kind, url, str(statement))
    os.waitid(os.P_PID, opener.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    opener.kill()
    said = opener.communicate()[1]
    assert not said, said
    assert opener.returncode == -signal.SIGKILL


def migrate_under(kind: str, folder: Path) -> dict[str, str]:
    """Let a process of the previous version use a store while others migrate it, of which the first are killed.

    It goes on working until the migration is committed, and then gets typed errors. Nothing is lost or leased twice.
    Returns the errors by call.
    """
    old = Version(sources_of(PREVIOUS, folder / "old"))
    with new_store(kind, folder) as url:
        older = old.start(OLDER, url)
        try:
            assert older.stdin is not None
            assert older.stdout is not None
            pushed, acked = 200, set()
            leased = dict(json.loads(older.stdout.readline()))
            errors: dict[str, str] = {}
            for statement in (*BEFORE_COMMIT[kind], None):
                if statement is None:
                    penstock.connect(url).close()
                else:
                    _kill_at(kind, url, statement)
                older.stdin.write("\n")
                older.stdin.flush()
                outcomes = json.loads(older.stdout.readline())
                errors = {name: error for name, (_, error) in outcomes.items() if error}
                assert not errors or statement is None, "a migration that was killed leaves the store as it was"
                pushed += "push" not in errors
                leased.update([] if "lease" in errors else outcomes["lease"][0])
                if "ack" not in errors:
                    assert outcomes["ack"][0][0] == 0
                    acked.add(outcomes["ack"][0][1])
            assert {"lease", "ack"} <= errors.keys(), "it would not see leases that are stored as ranges"
        finally:
            older.kill()
            older.communicate()
        with penstock.connect(url) as client:
            queue = client.queue("orders")
            others = [message.id for message in queue.lease(1_000)]
            assert not leased.keys() & set(others), "leased twice"
            assert len(others) == len(set(others)) == pushed - len(leased), "lost or doubled"
            open_leases = [SettleItem(id, token) for id, token in leased.items() if id not in acked]
        with closing(open_store(url.removeprefix("sqlite:///"))) as store:
            (settled,) = store.apply([Ack(queue="orders", items=open_leases)])
            assert set(settled.results) == {Settled.OK}
        return errors


def run(kind: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Migrate the stores of a stopped and of a killed default server in both directions; run two versions together."""
    moved = [move_used_store(kind, folder / f"kill-{kill}", seconds, kill=kill)["messages"] for kill in (False, True)]
    return {
        "messages moved": moved,
        "previous version": use_with_previous(kind, folder, count=500),
        "killed while it migrated": migration_rounds.run(kind, folder / "killed", every=1),
        "open while it was migrated": migrate_under(kind, folder / "under"),
    }


def later_version(folder: Path) -> Version:
    """Return a copy of this version with one more queue option and one more stream option, like a later version."""
    copied = Path(shutil.copytree(ROOT / "src", folder / "later"))
    for file, first in (("core/model.py", "    lease_ms:"), ("log/model.py", "    segment_bytes:")):
        path = copied / "penstock" / file
        text = path.read_text("utf-8")
        assert text.count(first) >= 1
        path.write_text(text.replace(first, f"    sparkle: int = 0\n{first}", 1), "utf-8")
    return Version(copied)
