"""Runs a server and, if Spark is installed, the pipeline for the demo's traffic."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from penstock.config import Settings
from penstock.core.signals import StopFlag
from penstock.demo.traffic import Shop
from penstock.errors import CannotOpen, PenstockError
from penstock.log.files import DISK, replace
from penstock.server.app import App
from penstock.server.serve import listen, open_store_from, serve

PIPELINE = "from penstock.core.signals import end_with_parent; end_with_parent(); from penstock.cli import main; main()"
REFRESH_SECONDS = 5
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 30.0


def has_spark() -> bool:
    return all(find_spec(name) is not None for name in ("pyspark", "deltalake"))


class DemoServer:
    """A server on a thread of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listener = listen(settings)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server")
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._listener.close()
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        store, path = open_store_from(self._settings)
        await serve(self._settings, store, path, self._listener, stop=self._stop, ready=self._begin)

    def _begin(self, app: App) -> None:
        paths = {route.path for route in app.routes}
        self.page = f"{self.url}/" if "/" in paths else f"{self.url}/docs"
        self._ready.set()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._listener.close()


class Refreshing:
    """Runs the pipeline in a separate process and redraws the report from its results."""

    def __init__(self, data: Path) -> None:
        self._lake = data / "lake"
        self.report = data / "report.html"
        self.log = data / "pipeline.log"
        words = ("pipeline", "run", "--data", str(data), "--every", f"{REFRESH_SECONDS}s")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PIPELINE, *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def draw(self) -> bool:
        """Redraw the report. Return False while the lake is empty; raise CannotOpen if the pipeline has ended."""
        if self._process.poll() is not None:
            raise CannotOpen("the pipeline has ended", hint=f"see {self.log}")
        from penstock.pipeline.lake.lake import Lake
        from penstock.pipeline.report.report import report

        lake = Lake(self._lake)
        if not lake.exists():
            return False
        try:
            text = report(lake, None, None)
        except PenstockError:
            return False  # The tables exist but are still empty.
        replace(DISK, self.report, text.encode())
        return True

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # The pipeline exits when its stdin closes, also if this process dies.
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def demo(settings: Settings, *, spark: bool, pace: float) -> Iterator[tuple[DemoServer, Shop, Refreshing | None]]:
    with contextlib.ExitStack() as stack:
        server = DemoServer(settings)
        stack.callback(server.close)
        shop = Shop(server.url, pace=pace)
        stack.callback(shop.close)
        shop.open()
        refreshing = Refreshing(Path(settings.data)) if spark else None
        if refreshing is not None:
            stack.callback(refreshing.close)
        yield server, shop, refreshing


def await_first_chart(refreshing: Refreshing, stop: StopFlag, waiting: Callable[[float], None]) -> float | None:
    """Return after how many seconds the report was drawn; None if stopped before. `waiting` gets the time so far."""
    began = time.monotonic()
    while not stop.wait(LOOK_SECONDS):
        waiting(time.monotonic() - began)
        if refreshing.draw():
            return time.monotonic() - began
    return None
