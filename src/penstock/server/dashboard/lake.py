"""Freshness of the lake's tables for the dashboard: `/pipeline`. Reads the Delta log without a JVM."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.server.api.journal import Journal
from penstock.server.dashboard.overview import Shared
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.wire.streams import ConsumerView, consumer_view

if TYPE_CHECKING:
    from penstock.pipeline.lake.storage import Folder

LOG_TAIL_BYTES = 64 << 10
LOGGED_ERROR = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}) (?:ERROR|FATAL) (?P<text>.*)")


class TableView(Struct, kw_only=True):
    table: str
    about: str
    rows: int
    files: int
    bytes: int
    position: int | None
    """Journal offset up to which the table is complete."""
    lag: int | None
    """Journal records that are not in the table yet."""
    newest_ms: int | None


class ExpectationView(Struct, kw_only=True):
    model: str
    expectation: str
    action: str
    """`warn`, `quarantine` or `stop`."""
    passed: bool
    failed: int
    """Rows of the last check that failed."""
    checked_at: int


class PipelineView(Struct, kw_only=True):
    installed: bool
    """True if this server can read the tables (the extra `spark` is installed)."""
    exists: bool
    lake: str
    running: bool | None
    """True if a pipeline works on the lake; null on object storage, where none takes a lock."""
    next: int
    """The journal's next offset."""
    tables: list[TableView]
    readers: list[ConsumerView]
    expectations: list[ExpectationView] = []
    """Results of the expectations of models."""
    last_error: str | None = None
    """The newest error at the end of Spark's log."""
    last_error_at: int | None = None


class LakeApi:
    def __init__(self, lake: Folder, reader: Journal) -> None:
        self._lake = lake
        self._reader = reader
        self._shared = Shared(self._load)

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/pipeline",
                self.show,
                "Show size and freshness of each table in the lake",
                "read",
                tag="journal",
                answers={200: PipelineView},
            )
        ]

    async def show(self, request: Request) -> Response:
        return await self._shared(None)

    async def _load(self, _: Any) -> Response:
        return await asyncio.to_thread(partial(_view, self._lake, self._reader))


def _view(folder: Folder, reader: Journal) -> Response:
    from penstock.pipeline.lake.storage import logs_of

    end = reader.next_offset()
    view = PipelineView(
        installed=find_spec("deltalake") is not None and find_spec("pyarrow") is not None,
        exists=False,
        lake=str(folder),
        running=False,
        next=end,
        tables=[],
        readers=[consumer_view(each) for each in reader.consumers()],
    )
    view.last_error, view.last_error_at = _last_error(logs_of(folder) / "spark.log")
    if view.installed and (not isinstance(folder, Path) or (folder / "bronze").is_dir()):
        from penstock.pipeline.lake.lake import Lake

        lake = Lake(folder)
        view.exists = lake.exists()
        view.tables = _tables(lake, reader, end) if view.exists else []
        view.expectations = _expectations(lake) if view.exists else []
        view.running = (view.exists and _is_locked(lake)) if isinstance(folder, Path) else None
    return reply(view)


def _tables(lake: Any, reader: Journal, end: int) -> list[TableView]:
    from penstock.pipeline.lake.lake import app_of
    from penstock.pipeline.models.catalog import tables_of

    app = app_of(reader.uid)
    return [_table(table, app, end) for table in tables_of(lake)]


def _expectations(lake: Any) -> list[ExpectationView]:
    from penstock.pipeline.models.results import load

    return [
        ExpectationView(
            model=each["model"],
            expectation=each["expectation"],
            action=each["action"],
            passed=each["passed"],
            failed=each["failed"],
            checked_at=int(each["checked_at"].timestamp() * 1000),
        )
        for each in load(lake)
    ]


def _table(table: Any, app: str | None, end: int) -> TableView:
    size = table.size(app)
    newest = table.greatest_of(next(iter(reversed(table.table.ranged)), None))
    return TableView(
        table=size.table,
        about=table.table.about,
        rows=size.rows,
        files=size.files,
        bytes=size.bytes,
        position=size.position,
        lag=None if size.position is None else max(0, end - size.position),
        newest_ms=None if newest is None else int(newest.timestamp() * 1000),
    )


def _is_locked(lake: Any) -> bool:
    try:
        lake.lock().close()
    except PenstockError:
        return True
    return False


def _last_error(log: Path) -> tuple[str | None, int | None]:
    """Return the last error at the end of Spark's log, and its time."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None, None
    for line in reversed(lines):
        if found := LOGGED_ERROR.match(line):
            # Spark logs local time, with a comma before the milliseconds.
            logged_at = datetime.fromisoformat(found["at"].replace(",", "."))
            return found["text"][:500], int(logged_at.timestamp() * 1000)
    return None, None
