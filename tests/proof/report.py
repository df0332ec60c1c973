"""Writes one report of a run: Markdown, HTML with plots, and JSON."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from penstock.pipeline.report.plots import STYLE as PLOTS_STYLE
from penstock.pipeline.report.plots import lines
from tests.crash.accounting import COLUMNS, Accounting
from tests.proof.fault_run import FaultRun
from tests.proof.load import Load
from tests.proof.soak import Soak

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #8a97a5; --line: #dde3ea }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe4ee; --paper: #12181f; --line: #2b3744 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums } svg { width: 100%; height: auto }
"""
ROWS = ("put", "pop", "ack", "order")


@dataclass
class Report:
    seed: int
    fault_runs: list[FaultRun] = field(default_factory=list)
    soaks: list[Soak] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    fuzzed: dict[str, dict[str, Any]] = field(default_factory=dict)
    compatibility: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """The parts that ended with an exception."""
    without_disk: bool = False

    @property
    def violations(self) -> list[str]:
        found = list(self.failed)
        for fault_run in self.fault_runs:
            found += [f"{fault_run.store}, seed {fault_run.seed}: {each}" for each in fault_run.verdict.violations]
        for soak in self.soaks:
            found += [f"{soak.store}, soak: {each}" for each in soak.violations]
        for load in self.loads:
            found += [f"{load.store}, load: {each}" for each in load.violations]
        return found

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        parts = self._parts()
        (folder / "proof.md").write_text("\n\n".join(_markdown(*part) for part in parts) + "\n")
        body = "".join(_html(*part) for part in parts)
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Proof</title>'
        (folder / "proof.html").write_text(f"{head}<style>{PLOTS_STYLE}{STYLE}</style>{body}</html>\n")
        (folder / "proof.json").write_bytes(msgspec.json.format(msgspec.json.encode(self._summary()), indent=1))

    def _parts(self) -> list[tuple[str, Any]]:
        verdict = (
            f"{len(self.violations)} violations" if self.violations else "nothing lost, unexpected or leased twice"
        )
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        parts: list[tuple[str, Any]] = [
            ("h1", f"Proof: {verdict}"),
            ("p", f"{when}, {machine}, seed {self.seed}. Replay with --seed {self.seed}."),
        ]
        if self.without_disk:
            parts.append(("p", "Skipped without a C compiler: power cuts, disk faults, clock changes."))
        for store in dict.fromkeys(fault_run.store for fault_run in self.fault_runs):
            parts += self._fault_parts(store)
        for soak in self.soaks:
            parts += _soak_parts(soak)
        for load in self.loads:
            rows = [level.summary() for level in load.levels]
            parts += [
                ("h2", f"Load past saturation, {load.store}"),
                ("table", [list(rows[0]), *(list(row.values()) for row in rows)]),
            ]
        for name, counts in self.fuzzed.items():
            parts += [("h2", f"Nonsense, {name}"), ("table", [["what", "number"], *map(list, counts.items())])]
        for name, found in self.compatibility.items():
            parts += [("h2", f"Compatibility, {name}"), ("table", [["what", "outcome"], *map(list, found.items())])]
        parts += [("h2", "Troubles"), ("list", self.violations or ["none"])]
        return parts

    def _fault_parts(self, store: str) -> list[tuple[str, Any]]:
        fault_runs = [fault_run for fault_run in self.fault_runs if fault_run.store == store]
        total, happened, explained = merged(fault_runs)
        seconds = sum(fault_run.seconds for fault_run in fault_runs)
        calls = sum(len(fault_run.history.ops) for fault_run in fault_runs)
        began = [min(op.began for op in fault_run.history.ops) / 1000 for fault_run in fault_runs]
        answered = [
            (begin + at, count)
            for begin, fault_run in zip(began, fault_runs, strict=True)
            for at, count in fault_run.answered
        ]
        return [
            ("h2", f"Faults, {store}"),
            ("p", f"{calls} calls of concurrent clients of every API in {seconds / 60:.1f} minutes."),
            ("table", [["", *COLUMNS], *([row, *(total.rows[row][column] for column in COLUMNS)] for row in ROWS)]),
            ("plot", ("successful calls per second", {"answered": answered})),
            ("table", [["fault", "times"], *([kind, str(count)] for kind, count in sorted(happened.items()))]),
            ("p", "Reasons for redeliveries and for deliveries in another order than the pushes:"),
            ("table", [["reason", "times"], *([reason, str(count)] for reason, count in explained.most_common())]),
        ]

    def _summary(self) -> dict[str, Any]:
        stores = {}
        for store in dict.fromkeys(fault_run.store for fault_run in self.fault_runs):
            fault_runs = [fault_run for fault_run in self.fault_runs if fault_run.store == store]
            total, happened, explained = merged(fault_runs)
            stores[store] = {
                "seeds": [fault_run.seed for fault_run in fault_runs],
                "minutes": round(sum(fault_run.seconds for fault_run in fault_runs) / 60, 2),
                "rows": {row: {column: total.rows[row][column] for column in COLUMNS} for row in ROWS},
                "faults": dict(happened),
                "explained": dict(explained),
            }
        return {
            "seed": self.seed,
            "violations": self.violations,
            "faults": stores,
            "soaks": {soak.store: soak.samples for soak in self.soaks},
            "loads": {load.store: [level.summary() for level in load.levels] for load in self.loads},
            "fuzzed": self.fuzzed,
            "compatibility": self.compatibility,
        }


def merged(fault_runs: list[FaultRun]) -> tuple[Accounting, Any, Any]:
    total = Accounting()
    for fault_run in fault_runs:
        total.add(fault_run.verdict.accounting)
    happened = sum((fault_run.happened for fault_run in fault_runs), start=type(fault_runs[0].happened)())
    explained = sum((fault_run.verdict.explained for fault_run in fault_runs), start=type(fault_runs[0].happened)())
    return total, happened, explained


def _soak_parts(soak: Soak) -> list[tuple[str, Any]]:
    samples = soak.samples
    table = [["", "first", "middle", "last"]]
    for name in ("memory_mib", "files", "p50_ms", "p99_ms", "calls_per_s"):
        picked = (samples[0], samples[len(samples) // 2], samples[-1])
        table.append([name, *(f"{getattr(sample, name):.1f}" for sample in picked)])
    parts: list[tuple[str, Any]] = [("h2", f"Soak, {soak.store}, {soak.seconds / 60:.1f} minutes"), ("table", table)]
    for title, names in (("memory, MiB", ["memory_mib"]), ("latency, ms", ["p50_ms", "p99_ms"]), ("files", ["files"])):
        series = {name: [(sample.at, getattr(sample, name)) for sample in samples] for name in names}
        parts.append(("plot", (title, series)))
    return parts


def _markdown(kind: str, content: Any) -> str:
    match kind:
        case "h1" | "h2":
            return f"{'#' * int(kind[1])} {content}"
        case "table":
            head, *rows = [[str(cell) for cell in row] for row in content]
            return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
        case "list":
            return "\n".join(f"- {each}" for each in content)
        case "plot":
            return f"(For the plot of {content[0]}, see proof.html.)"
        case _:
            return str(content)


def _html(kind: str, content: Any) -> str:
    match kind:
        case "table":
            head, *rows = content
            cells = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
            body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
            return f"<table><tr>{cells}</tr>{body}</table>"
        case "list":
            return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in content) + "</ul>"
        case "plot":
            return f"<p>{escape(content[0])}</p>{lines(content[1])}"
        case _:
            return f"<{kind}>{escape(content)}</{kind}>"
