"""Set-ups for a killed pipeline: servers on a file or a database, the pipeline, and a Spark cluster."""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

from penstock.errors import CannotOpen, StoreError
from penstock.journal.drainer import journal_folder
from penstock.journal.events import Event
from penstock.journal.postgres import PostgresJournal
from penstock.log.postgres.streams import PostgresStreams
from penstock.pipeline.lake.lake import Lake
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.crash.pipeline_traffic import QUEUES
from tests.integration.command_line import PENSTOCK, clean_environment
from tests.integration.serving import Process
from tests.object_store import BUCKET, ObjectStore
from tests.postgres import Cluster
from tests.spark.cluster import LOCALLY, Standalone
from tests.spark.support import events_in

STANDALONE = "standalone"
S3 = "s3"
ROLES = {
    "executor": "CoarseGrainedExecutorBackend",
    "driver's Java": "org.apache.spark.deploy.SparkSubmit",
    "Python worker": "pyspark.",
}


class OnFile:
    servers = 1

    def __init__(self, folder: Path) -> None:
        self._file = folder / "data" / "penstock.db"
        self.flags = ["--data", str(folder / "data")]

    def events(self) -> Iterator[Event]:
        return events_in(journal_folder(self._file))

    def held(self) -> Counter[str]:
        with closing(SqliteStore(self._file)) as store:
            return Counter({info.name: info.ready + info.scheduled + info.leased for info in store.list_queues()})

    def close(self) -> None:
        pass


class OnPostgres:
    """Two servers, so that transactions commit out of order."""

    servers = 2

    def __init__(self, folder: Path) -> None:
        self._database = Cluster(synced=True)
        self.flags = ["--store", self._database.url]

    def events(self) -> Iterator[Event]:
        with closing(PostgresStreams(self._database.url)) as streams:
            journal = PostgresJournal(streams.database)
            offset = journal.first_offset
            while offset < journal.next_offset():
                page = journal.read(offset)
                yield from page.events
                offset = page.next

    def held(self) -> Counter[str]:
        with closing(PostgresStore(self._database.url)) as store:
            return Counter({info.name: info.ready + info.scheduled + info.leased for info in store.list_queues()})

    def close(self) -> None:
        self._database.stop()


HOMES = {"sqlite": OnFile, "postgresql": OnPostgres}


class Place:
    """Servers at ports that stay the same, and a pipeline that follows them; what was killed is started again."""

    def __init__(self, folder: Path, store: str, master: str, *, lake: str = "folder") -> None:
        self.folder = folder
        self.objects = ObjectStore(folder / "s3") if lake == S3 else None
        if self.objects is not None:
            os.environ.update(self.objects.environment)  # For the readers of this process, too.
        self.home = HOMES[store](folder)
        self.cluster = Standalone(folder / "cluster") if master == STANDALONE else None
        self._master = master if self.cluster is None else self.cluster.url
        self.lake = Lake(folder / "lake" if self.objects is None else f"s3://{BUCKET}/lake")
        self.failures: Counter[str] = Counter()
        self._log = (folder / "pipeline.log").open("ab")
        self.ports = [_free_port() for _ in range(self.home.servers)]
        self.servers = [self._serve(number) for number in range(self.home.servers)]
        with self.servers[0].client() as client:
            for name, options in QUEUES.items():
                client.queue(name, **options)
        self.pipeline = self._run()

    def _serve(self, number: int) -> Process:
        folder = self.folder / f"server{number}"
        folder.mkdir(exist_ok=True)
        return Process(folder, *self.home.flags, "--port", str(self.ports[number]), "--no-access-log")

    @property
    def flags(self) -> list[str]:
        return [*self.home.flags, "--lake", str(self.lake.folder), "--master", self._master]

    def _run(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PENSTOCK, "pipeline", "run", "--continuous", *self.flags],
            stdout=self._log,
            stderr=self._log,
            env=clean_environment(**LOCALLY),
        )

    def revive(self) -> None:
        self._revive_servers()
        self._revive_objects()
        if (code := self.pipeline.poll()) is not None:
            self.failures[f"pipeline ended with {code}"] += 1
            self.pipeline = self._run()
        if self.cluster is not None:
            for number, worker in enumerate(self.cluster.workers):
                if worker.poll() is not None:
                    self.cluster.replace_worker(number)

    def _revive_servers(self) -> None:
        for number, server in enumerate(self.servers):
            if server.process.poll() is not None:
                self.servers[number] = self._serve(number)

    def _revive_objects(self) -> None:
        if self.objects is not None and self.objects.process.poll() is not None:
            self.objects.start()

    def victims(self) -> dict[str, list[psutil.Process]]:
        """By what they are."""
        found = {
            "server": [psutil.Process(server.process.pid) for server in self.servers],
            "driver": [psutil.Process(self.pipeline.pid)],
        }
        if self.objects is not None:
            found["S3 server"] = [psutil.Process(self.objects.process.pid)]
        above = found["driver"]
        if self.cluster is not None:
            found["Spark's worker"] = [psutil.Process(worker.pid) for worker in self.cluster.workers]
            above = above + found["Spark's worker"]
        for child in [child for each in above for child in each.children(recursive=True)]:
            with suppress(psutil.Error):
                words = " ".join(child.cmdline())
                role = next((role for role, word in ROLES.items() if word in words), None)
                if role is not None:
                    found.setdefault(role, []).append(child)
        return found

    def commits(self) -> list[int]:
        """How far the pipeline has come."""
        if self.objects is not None:  # It may just have been killed, and readers wait for minutes for its return.
            with suppress(subprocess.TimeoutExpired):
                self.objects.process.wait(0.2)
            self._revive_objects()
        with suppress(CannotOpen, StoreError):
            return [table.refresh().delta.version() for table in self.lake.tables()]
        return []

    def finish(self) -> None:
        """The servers end in order, and the pipeline comes to the journal's end."""
        self.pipeline.kill()
        self.pipeline.wait()
        self._revive_servers()
        self._revive_objects()
        for server in self.servers:
            assert server.terminate() == 0, server.text()
        subprocess.run(
            [PENSTOCK, "pipeline", "run", "--once", *self.flags],
            check=True,
            env=clean_environment(**LOCALLY),
            stdout=self._log,
            stderr=self._log,
        )

    def said(self) -> str:
        return (self.folder / "pipeline.log").read_text()

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.pipeline.kill()
        self.pipeline.wait()
        if self.cluster is not None:
            self.cluster.close()
        self.home.close()
        if self.objects is not None:
            self.objects.kill()
        self._log.close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
