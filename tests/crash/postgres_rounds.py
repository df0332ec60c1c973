"""Kills servers, the database and the network between them, and checks the records of the clients.

python tests/crash/postgres_rounds.py --rounds 100 --seed 7

Two servers share one PostgreSQL (fsync on), each connected through its own relay. Clients use both servers and the
database itself. Every other database has no journal.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import penstock
from penstock.core.commands import Ack, Lease, SettleItem
from penstock.store.postgres import PostgresStore
from tests.conformance.postgres_support import Tables
from tests.conformance.recount import check_tables
from tests.crash.accounting import Accounting
from tests.crash.fleet_accounting import Delivery, FleetLedger
from tests.crash.fleet_workers import QUEUE, Consumer, Writer
from tests.crash.relay import Relay
from tests.crash.workers import MAX_RETRIES, now_ms
from tests.integration.serving import Process
from tests.postgres import START_SECONDS_MAX, Cluster

SERVERS = 2
ROUNDS_PER_DATABASE = 25
HEALED_SECONDS_MAX = 90.0
HOUR_MS = 3_600_000


class Server:
    """A server that keeps its port across restarts and reaches the database through its own relay."""

    def __init__(self, folder: Path, database: Cluster, *, journal: bool) -> None:
        self._folder = folder
        folder.mkdir()
        self._journal = "--journal" if journal else "--no-journal"
        self.line = Relay(database.folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        where = ["--store", self.line.url, "--port", str(self.port)]
        self._process = Process(self._folder, *where, self._journal, "--no-access-log")

    def kill(self) -> None:
        self._process.close()

    def is_ready(self) -> bool:
        try:
            with self._process.client() as client:
                return client.get("/readyz").status == 200
        except OSError:
            return False

    def close(self) -> None:
        self.kill()
        self.line.close()


class Fleet:
    """Servers and clients, and the faults that can hit them."""

    def __init__(self, folder: Path, chance: random.Random, *, journal: bool) -> None:
        self.ledger = FleetLedger()
        self.database = Cluster(synced=True)
        self._chance = chance
        self.servers = [Server(folder / f"server{number}", self.database, journal=journal) for number in range(SERVERS)]
        with penstock.connect(self.servers[0].url) as client:
            client.create_queue(QUEUE, max_attempts=MAX_RETRIES)
        self._stop = threading.Event()
        urls = [*(server.url for server in self.servers), self.database.url]
        self.workers = [
            kind(url, self.ledger, chance.getrandbits(32), self._stop) for url in urls for kind in (Writer, Consumer)
        ]
        for worker in self.workers:
            worker.start()

    def kill_one_server(self) -> None:
        victim = self._chance.choice(self.servers)
        victim.kill()
        victim.start()

    def kill_all_servers(self) -> None:
        for server in self.servers:
            server.kill()
        for server in self.servers:
            server.start()

    def kill_the_database(self) -> None:
        self._restart_database(signal.SIGKILL)

    def stop_the_database_at_once(self) -> None:
        self._restart_database(signal.SIGQUIT)

    def _restart_database(self, how: signal.Signals) -> None:
        begun = now_ms()
        self.database.stop(how)
        time.sleep(self._chance.choice((0, 0.2, 1.0)))
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.database.start()
                break
            except RuntimeError:
                # Processes of the killed server may still be running.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self.ledger.crashes.append((begun, now_ms()))

    def hold_up_the_network(self) -> None:
        lines = self._some_lines()
        for line in lines:
            line.hold()
        time.sleep(self._chance.uniform(0.1, 1.5))
        for line in lines:
            line.restore()

    def cut_the_network(self) -> None:
        lines = self._some_lines()
        for line in lines:
            line.hold()
        time.sleep(self._chance.choice((0, 0.01, 0.5)))
        for line in lines:
            line.cut()
        time.sleep(self._chance.choice((0, 0.3, 1.0)))
        for line in lines:
            line.restore()

    def _some_lines(self) -> list[Relay]:
        lines = [server.line for server in self.servers]
        return lines if self._chance.random() < 0.5 else [self._chance.choice(lines)]

    def wait_until_healed(self) -> None:
        deadline = time.monotonic() + HEALED_SECONDS_MAX
        while not all(server.is_ready() for server in self.servers):
            if time.monotonic() > deadline:
                raise AssertionError("a server did not become ready again")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the clients, then the servers, because their sweeps would move messages between the checks."""
        self._stop.set()
        for worker in self.workers:
            worker.join(HEALED_SECONDS_MAX)
            if worker.is_alive():
                self.ledger.add_violation("put", "unexpected", f"a {type(worker).__name__} hangs")
        for server in self.servers:
            server.kill()

    def close(self) -> None:
        self._stop.set()
        for server in self.servers:
            server.close()
        self.database.remove()


FAULTS: tuple[Callable[[Fleet], None], ...] = (
    Fleet.kill_one_server,
    Fleet.kill_all_servers,
    Fleet.kill_the_database,
    Fleet.stop_the_database_at_once,
    Fleet.hold_up_the_network,
    Fleet.cut_the_network,
)


def run(rounds: int, seed: int, folder: Path) -> tuple[Accounting, Counter[str]]:
    chance, total, happened = random.Random(seed), Accounting(), Counter[str]()
    faults: list[Callable[[Fleet], None]] = []
    journal = chance.random() < 0.5
    for first in range(0, rounds, ROUNDS_PER_DATABASE):
        database_folder = folder / f"database{first // ROUNDS_PER_DATABASE}"
        database_folder.mkdir()
        journal = not journal
        happened["databases with a journal" if journal else "databases without"] += 1
        fleet = Fleet(database_folder, chance, journal=journal)
        try:
            for _ in range(min(ROUNDS_PER_DATABASE, rounds - first)):
                faults = faults or chance.sample(FAULTS, len(FAULTS))
                fault = faults.pop()
                # Some faults come so early that a server is still starting or recovering.
                time.sleep(chance.uniform(0.01, 0.1) if chance.random() < 0.2 else chance.uniform(0.3, 1.0))
                fault(fleet)
                happened[fault.__name__] += 1
                if chance.random() < 0.8:
                    fleet.wait_until_healed()
            fleet.wait_until_healed()
            fleet.stop()
            total.add(_settle(fleet))
        finally:
            fleet.close()
        if total.violations:
            break
    return total, happened


def _settle(fleet: Fleet) -> Accounting:
    url, ledger = fleet.database.url, fleet.ledger
    _check_database(url, ledger)
    accounting = ledger.settle(_drain(url, ledger))
    _check_database(url, ledger)
    return accounting


def _check_database(url: str, ledger: FleetLedger) -> None:
    tables = Tables(url, "penstock")
    try:
        # A killed server's last transactions may still be in progress, so every query reads one snapshot.
        tables.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        check_tables(tables, busy_exactly=False)
    except AssertionError as error:
        ledger.add_violation("put", "unexpected", f"counters differ from a recount: {error}")
    finally:
        tables.close()


def _drain(url: str, ledger: FleetLedger) -> set[int]:
    """Take everything that is left, with a clock an hour ahead so that all leases have expired."""
    drained: set[int] = set()
    store = PostgresStore(url, clock=lambda: now_ms() + HOUR_MS)
    while True:
        sent_at = now_ms() + HOUR_MS
        (leased,) = store.apply([Lease(queue=QUEUE, limit=1_000)])
        if not leased.messages and not leased.more:
            break
        received_at = now_ms() + HOUR_MS
        for m in leased.messages:
            drained.add(m.id)
            ledger.deliveries.append(Delivery(m.id, m.payload.decode().strip('"'), m.token, sent_at, received_at))
        store.apply([Ack(queue=QUEUE, items=[SettleItem(m.id, m.token) for m in leased.messages])])
    info = store.find_queue(QUEUE)
    assert info is not None
    if info.ready or info.scheduled or info.leased or info.dead:
        ledger.add_violation("pop", "unexpected", f"messages left after all were acked: {info}")
    store.close()
    return drained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.rounds} rounds", flush=True)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="postgres-rounds-"))
    total, happened = run(arguments.rounds, arguments.seed, folder)
    print(total.table())
    print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(happened.items())))
    print(f"{time.monotonic() - started:.0f} s")
    for violation in total.violations[:50]:
        print(violation)
    if total.violations:
        print(f"{len(total.violations)} violations; the server logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
