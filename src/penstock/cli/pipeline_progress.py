"""Progress of a pipeline command on a terminal; elsewhere nothing is shown."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Display:
    """Shows a spinner at once, and a bar as soon as there is something to count."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Any = None
        self._task: Any = None
        self._total = 0

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None, detail="")
        return self

    def print(self, text: str) -> None:
        """Print a line above the progress bar, where it stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def doing(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._what}: {what}")

    def more(self, count: int) -> None:
        """Add to the total."""
        self._total += count
        if self._bar is not None and self._total:
            self._bar.update(self._task, total=self._total)

    def done(self, count: int, detail: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=count, detail=detail)

    def clear(self) -> None:
        """Remove the bar, so that the result can be printed; later progress is not shown."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
