"""Metrics of the pipeline as a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.models.catalog import tables_of
from penstock.pipeline.models.definitions import REJECTS
from penstock.pipeline.models.results import load


class Metric(Struct, frozen=True):
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


LAG = Metric("penstock_pipeline_lag_records", "gauge", (), "Journal records that are not in the lake yet")
OFFSET = Metric("penstock_pipeline_offset", "gauge", (), "Journal offset up to which the lake is complete")
UPDATED = Metric("penstock_pipeline_updated_seconds", "gauge", (), "Time of this file, in seconds since 1970")
STEP_AT = Metric("penstock_pipeline_step_time_seconds", "gauge", (), "Time of the last step, in seconds since 1970")
STEP_SECONDS = Metric("penstock_pipeline_step_duration_seconds", "gauge", (), "Duration of the last step")
STEPS = Metric("penstock_pipeline_steps_total", "counter", (), "Steps since the process started")
EVENTS = Metric("penstock_pipeline_events_total", "counter", (), "Events read since the process started")
LOST = Metric("penstock_pipeline_lost_records_total", "counter", (), "Journal records that were trimmed unread")
ERRORS = Metric("penstock_pipeline_errors_total", "counter", (), "Steps that failed since the process started")
FAILING = Metric("penstock_pipeline_failing", "gauge", (), "1 if the last step failed")
ROWS = Metric("penstock_pipeline_table_rows", "gauge", ("table",), "Rows of a table")
FILES = Metric("penstock_pipeline_table_files", "gauge", ("table",), "Files of a table")
BYTES = Metric("penstock_pipeline_table_bytes", "gauge", ("table",), "Bytes of a table's files")
QUARANTINED = Metric("penstock_pipeline_quarantined_rows", "gauge", ("model",), "Rows in a model's quarantine table")
EXPECTATION = Metric(
    "penstock_pipeline_expectation_failed",
    "gauge",
    ("model", "expectation", "action"),
    "1 if an expectation failed at its last check",
)
METRICS = (
    *(LAG, OFFSET, UPDATED, STEP_AT, STEP_SECONDS, STEPS, EVENTS, LOST, ERRORS, FAILING),
    *(ROWS, FILES, BYTES, QUARANTINED, EXPECTATION),
)
Sample = tuple[Metric, tuple[str, ...], float]


class MetricsFile:
    """Writes the metrics of one process, as a context that counts errors. Without a path it does nothing."""

    def __init__(self, path: Path | None, lake: Lake) -> None:
        self._path = path
        self._lake = lake
        self._values: dict[Metric, float] = dict.fromkeys((STEPS, EVENTS, LOST, ERRORS, FAILING), 0)
        self._tables: list[Sample] = []

    def step(self, step: Any) -> None:
        """Count a step, and look at the tables that it changed."""
        if self._path is not None:
            self._values[STEPS] += 1
            self._values[EVENTS] += step.events
            self._values[LOST] += step.lost
            self._values |= {STEP_AT: time.time(), STEP_SECONDS: step.seconds, FAILING: 0}
            self._tables = list(self._table_samples())
            self.write(step.end, step.lag)

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._path is not None and isinstance(error, Exception):
            self._values[ERRORS] += 1
            self._values[FAILING] = 1
            self._write()

    def write(self, offset: int, lag: int) -> None:
        if self._path is not None:
            self._values |= {OFFSET: offset, LAG: lag}
            self._write()

    def _write(self) -> None:
        assert self._path is not None
        self._values[UPDATED] = time.time()
        samples = [*((metric, (), value) for metric, value in self._values.items()), *self._tables]
        # The collector ignores this name. Without fsync: the next step writes another one.
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(_text(samples), encoding="utf-8")
        beside.replace(self._path)

    def _table_samples(self) -> Iterator[Sample]:
        for table in tables_of(self._lake):
            size = table.size(None)
            for metric, value in ((ROWS, size.rows), (FILES, size.files), (BYTES, size.bytes)):
                yield metric, (size.table,), value
            if size.table.endswith(REJECTS):
                yield QUARANTINED, (size.table.removeprefix("model.").removesuffix(REJECTS),), size.rows
        for each in load(self._lake):
            yield EXPECTATION, (each["model"], each["expectation"], each["action"]), int(not each["passed"])


def _text(samples: list[Sample]) -> str:
    lines = []
    for metric in METRICS:
        found = [(labels, value) for each, labels, value in samples if each is metric]
        if found:
            lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, value in found:
            pairs = ",".join(f'{name}="{_quoted(text)}"' for name, text in zip(metric.labels, labels, strict=True))
            lines.append(f"{metric.name}{{{pairs}}} {value}" if pairs else f"{metric.name} {value}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
