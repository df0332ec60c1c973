"""Formats the results as Markdown. The embedded benchmark's `as_json` writes the JSON."""

from __future__ import annotations

from itertools import product
from typing import Any

from lib.report import table, unique
from peers import OURS, PEERS, Peer

Row = dict[str, Any]
BY_KEY: dict[str, type[Peer]] = {system.key: system for system in PEERS}
# Above this share of its core, the load generator may be the limit of a cell instead of the server.
BUSY = 0.9
MARKS = f"ᵍ the load generator used more than {BUSY:.0%} of its core: the client library is the limit."


def as_markdown(results: dict[str, Any]) -> str:
    parts = ["# Server: results", about(results)]
    if results.get("systems"):
        parts += how(results["systems"])
    cells, loops = results.get("compare", []), results.get("workers", [])
    if cells:
        parts += compare(cells)
    if loops:
        parts += workers(loops)
    parts += verdict(cells, loops)
    if results.get("promises"):
        parts += promises(results["promises"])
    if results.get("profile"):
        parts += profile(results["profile"])
    parts += skipped(results["skipped"]) + failures([*cells, *loops])
    return "\n\n".join(parts) + "\n"


def about(results: dict[str, Any]) -> str:
    machine, settings = results["machine"], results["settings"]
    return (
        f"{machine['date']}, {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['filesystem']}, Python {machine['python']}, load average {machine['load_before']} at the start. "
        f"200-byte messages. Medians of {settings['rounds']} rounds of {settings['window_s']} s per phase, in which "
        f"the systems take turns; the whole run took {machine['run_s']} s. {settings['cores']}"
    )


def label(key: str) -> str:
    return f"**{BY_KEY[key].label}**" if key in OURS else BY_KEY[key].label


def how(systems: list[Row]) -> list[str]:
    lines = [
        [label(one["key"]), one["version"], one["client"], one["durability"], one["batch_form"], one["acks"]]
        for one in systems
    ]
    header = ["system", "version", "client", "durability", "batch of n", "an ack"]
    return ["## How each is measured", words(header, lines)]


def words(header: list[str], lines: list[list[str]]) -> str:
    """Format a table of text instead of numbers."""
    return table(header, lines).replace("---:", "---")


def compare(rows: list[Row]) -> list[str]:
    parts: list[str] = []
    for batch in unique(rows, "batch"):
        part = [row for row in rows if row["batch"] == batch]
        parts += [f"## Batch {batch}", rates(part), times(part)]
        parts += [ratios(part, ours) for ours in OURS if any(row["system"] == ours for row in part)]
    return [*parts, MARKS]


def workers(rows: list[Row]) -> list[str]:
    text = (
        "Messages handled one by one per second. Each worker has its own connection and only acknowledges the messages."
    )
    lines = [[label(key), str(BY_KEY[key].worker_form)] for key in unique(rows, "system")]
    parts = ["## Worker loop", text, words(["system", "loop"], lines), rates(rows), usage(rows)]
    return [*parts, *(ratios(rows, ours) for ours in OURS if any(row["system"] == ours for row in rows)), MARKS]


def usage(rows: list[Row]) -> str:
    """Format the CPU time per message, which says more than the rate if the generator is the limit."""
    columns, found = columns_of(rows), found_of(rows)
    lines = [[label(key), *(cost(found.get((key, *column))) for column in columns)] for key in unique(rows, "system")]
    return table(["µs per message, client + server", *heading(columns)], lines)


def cost(row: Row | None) -> str:
    if row is None or not row["median"]:
        return "–"
    return " + ".join(f"{row[side] / row['median'] * 1e6:,.0f}" for side in ("generator_cpu", "server_cpu"))


def columns_of(rows: list[Row]) -> list[tuple[str, int]]:
    return list(product(unique(rows, "operation"), unique(rows, "clients")))


def heading(columns: list[tuple[str, int]]) -> list[str]:
    return [f"{operation}, {users(operation, clients)}" for operation, clients in columns]


def users(operation: str, count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}" if operation == "worker loop" else f"{count} cl."


def found_of(rows: list[Row]) -> dict[tuple[str, str, int], Row]:
    return {(row["system"], row["operation"], row["clients"]): row for row in rows}


def rates(rows: list[Row]) -> str:
    columns, found = columns_of(rows), found_of(rows)
    lines = [[label(key), *(rate(found.get((key, *column))) for column in columns)] for key in unique(rows, "system")]
    return table(["msg/s", *heading(columns)], lines)


def rate(row: Row | None) -> str:
    if row is None:
        return "–"
    if row["median"] is None:
        return "failed"
    return f"{row['median']:,.0f}" + ("ᵍ" if row["generator_cpu"] > BUSY else "")


def times(rows: list[Row]) -> str:
    columns, found = columns_of(rows), found_of(rows)
    lines = [[label(key), *(spread(found.get((key, *column))) for column in columns)] for key in unique(rows, "system")]
    return table(["p50 / p99 ms a step", *heading(columns)], lines)


def spread(row: Row | None) -> str:
    if row is None or row["median"] is None or row["p50_ms"] is None:
        return "–"
    return " / ".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in (row["p50_ms"], row["p99_ms"]))


def ratio(found: dict[tuple[str, str, int], Row], ours: str, peer: str, column: tuple[str, int]) -> float | None:
    mine, other = found.get((ours, *column)), found.get((peer, *column))
    if not mine or not other or not mine["median"] or not other["median"]:
        return None
    return float(mine["median"] / other["median"])


def ratios(rows: list[Row], ours: str) -> str:
    columns, found = columns_of(rows), found_of(rows)
    lines = []
    for peer in [key for key in unique(rows, "system") if key not in OURS]:
        values = [ratio(found, ours, peer, column) for column in columns]
        lines.append([BY_KEY[peer].label, *("–" if value is None else f"{value:.1f}×" for value in values)])
    return table([f"{BY_KEY[ours].label} / peer", *heading(columns)], lines)


def place(row: Row) -> str:
    if "batch" not in row:
        return f"{row['operation']}, {users(row['operation'], row['clients'])}"
    return f"{row['operation']}, batch {row['batch']}, {row['clients']} client{'s' if row['clients'] > 1 else ''}"


def verdict(cells: list[Row], loops: list[Row]) -> list[str]:
    """Compare the best of Penstock's clients with each peer at batch 100, at 64 clients and in worker loops."""
    judged_rows = [row for row in cells if row["batch"] == 100 or row["clients"] == 64] + loops
    ours: dict[str, float] = {}
    for row in judged_rows:
        if row["system"] in OURS and row["median"]:
            ours[place(row)] = max(ours.get(place(row), 0), row["median"])
    behind, judged = [], 0
    for row in judged_rows:
        mine = ours.get(place(row))
        if row["system"] in OURS or not row["median"] or not mine:
            continue
        judged += 1
        if mine < row["median"]:
            behind.append(f"- {place(row)}: {BY_KEY[row['system']].label} ({mine / row['median']:.2f}×)")
    if not judged:
        return []
    text = (
        "At batch 100, at 64 clients and in worker loops, the best of its clients is ahead in "
        f"{judged - len(behind)} of {judged} comparisons"
    )
    if not behind:
        return ["## Comparison with peers", text + "."]
    return ["## Comparison with peers", text + "; not in these:", "\n".join(behind)]


def promises(rows: list[Row]) -> list[str]:
    lines = [[row["name"], amount(row), row["target"] or "–", judgement(row), row["note"]] for row in rows]
    return ["## Penstock's own targets", words(["Penstock alone", "measured", "target", "verdict", ""], lines)]


def judgement(row: Row) -> str:
    if not row["target"]:
        return "–"
    return {True: "met", False: "**NOT met**", None: "not checked at this size"}[row["met"]]


def amount(row: Row) -> str:
    if row["value"] is None:
        return "–"
    digits = 0 if row["value"] >= 1000 else 2 if row["unit"] == "×" else 1
    return f"{row['value']:,.{digits}f} {row['unit']}"


def profile(rows: list[Row]) -> list[str]:
    lines = [[f"`{row['function']}`", row["file"], f"{row['share']:.1%}"] for row in rows]
    text = (
        "Share of the samples by innermost Python function (the C code it calls counts to it), "
        "under cycles of single messages by 64 clients."
    )
    return ["## Where the server's time goes at batch 1", text, words(["function", "file", "share"], lines)]


def skipped(missing: dict[str, str]) -> list[str]:
    lines = [f"- {BY_KEY[key].label}: {why}" for key, why in missing.items()]
    return ["## Skipped", "\n".join(lines)] if lines else []


def failures(rows: list[Row]) -> list[str]:
    found = [f"- {BY_KEY[row['system']].label}, {place(row)}: {row['error']}" for row in rows if "error" in row]
    return ["## Failures", "\n".join(found)] if found else []
