"""Formats the results as Markdown."""

from __future__ import annotations

from itertools import product
from typing import Any

from lib.report import table, unique

from .fleet import ANSWER_MS_MOST, POP_MS_MOST
from .served import MEMORY_MB_MOST
from .systems import BY_KEY, OURS
from .wakes import LEASES_A_PUSH_MOST, WAKE_MS_MOST

Row = dict[str, Any]
DIRECT_LEAST = SERVED_LEAST = 10_000
SERVED_BATCH = 10
LAST_TO_FIRST_LEAST = 0.9
THOUSAND = 1_000
MILLION = 1_000_000


def as_markdown(results: dict[str, Any]) -> str:
    parts = ["# PostgreSQL: results", about(results), *how(results["systems"])]
    if results.get("compare"):
        parts += compare(results["compare"])
    if results.get("server"):
        parts += served(results["server"], results["memory"])
    if results.get("fleet"):
        parts += fleet(results["fleet"]["polls"], results["fleet"]["queues"])
        parts += wakes(results["fleet"]["wakes"]) if "wakes" in results["fleet"] else []
    if results.get("churn"):
        parts += churn(results["churn"])
    parts += skipped(results["skipped"]) + failures(results.get("compare", []))
    return "\n\n".join(parts) + "\n"


def about(results: dict[str, Any]) -> str:
    machine, settings = results["machine"], results["settings"]
    return (
        f"{machine['date']}, {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['filesystem']}, Python {machine['python']}, PostgreSQL {machine['postgres']} with its defaults "
        "(fsync and synchronous_commit on, 128 MB of buffers), "
        f"load average {machine['load_before']} at the start. 200-byte messages. "
        f"Medians of {settings['rounds']} rounds of {settings['round_s']} s, in which the systems take turns; "
        "the load generator (one process) and the database share all cores. "
        f"The run took {machine['run_s']} s."
    )


def label(key: str) -> str:
    return f"**{BY_KEY[key].label}**" if key in OURS else BY_KEY[key].label


def words(header: list[str], lines: list[list[str]]) -> str:
    return table(header, lines).replace("---:", "---")


def how(systems: list[Row]) -> list[str]:
    lines = [[label(one["key"]), one["version"], one["client"], one["batch_form"]] for one in systems]
    return ["## How each is measured", words(["system", "version", "client", "batch of n"], lines)]


def compare(rows: list[Row]) -> list[str]:
    parts = ["## Full cycles: messages pushed, leased and acked per second"]
    for backlog in unique(rows, "backlog"):
        part = [row for row in rows if row["backlog"] == backlog]
        columns = list(product(unique(part, "batch"), unique(part, "clients")))
        found = {(row["system"], row["batch"], row["clients"]): row for row in part}
        keys = unique(part, "system")
        lines = [[label(key), *(rate(found.get((key, *column))) for column in columns)] for key in keys]
        for ours, peer in product(OURS, keys):
            if ours in keys and peer not in OURS:
                values = [ratio(found.get((ours, *column)), found.get((peer, *column))) for column in columns]
                lines.append([f"{BY_KEY[ours].label} / {BY_KEY[peer].label}", *values])
        header = [f"batch {batch}, {clients} cl." for batch, clients in columns]
        parts += [f"### {backlog:,} waiting" if backlog else "### Nothing waiting", table(["msg/s", *header], lines)]
    for ours in OURS:
        parts += verdict(rows, ours)
    return [*parts, *target(rows)]


def rate(row: Row | None) -> str:
    if row is None:
        return "–"
    return "failed" if row["median"] is None else f"{row['median']:,.0f}"


def ratio(mine: Row | None, other: Row | None) -> str:
    if not mine or not other or not mine["median"] or not other["median"]:
        return "–"
    return f"{mine['median'] / other['median']:.1f}×"


def place(row: Row) -> tuple[int, int, int]:
    return row["backlog"], row["batch"], row["clients"]


def verdict(rows: list[Row], ours: str) -> list[str]:
    medians = {place(row): row["median"] for row in rows if row["system"] == ours}
    judged, behind = 0, []
    for row in rows:
        mine = medians.get(place(row))
        if row["system"] in OURS or not row["median"] or not mine:
            continue
        judged += 1
        if mine < row["median"]:
            where = f"{row['backlog']:,} waiting, batch {row['batch']}, {row['clients']} clients"
            behind.append(f"- {where}: {BY_KEY[row['system']].label} ({mine / row['median']:.2f}×)")
    if not judged:
        return []
    text = f"{BY_KEY[ours].label}: ahead in {judged - len(behind)} of {judged} comparisons"
    return [text + "; not in these:", "\n".join(behind)] if behind else [text + "."]


def target(rows: list[Row]) -> list[str]:
    direct = next((row["median"] for row in rows if row["system"] == "penstock" and place(row) == (0, 1, 100)), None)
    if not direct:
        return []
    return [
        f"100 clients, one by one, without a server: {direct:,.0f} per second; the target of over "
        f"{DIRECT_LEAST:,} {met(direct > DIRECT_LEAST)}."
    ]


def met(is_met: bool, complete: bool = True) -> str:
    if not complete:
        return "is not checked at this smaller size"
    return "is met" if is_met else "is MISSED"


def served(rows: list[Row], memory: Row) -> list[str]:
    lines = [[f"{row['clients']} clients, batch {row['batch']}", f"{row['median']:,.0f}"] for row in rows]
    best = max((row["median"] for row in rows if row["batch"] >= SERVED_BATCH), default=0)
    total = (memory["server_bytes"] + memory["database_bytes"]) / 1e6
    parts = f"{memory['server_bytes'] / 1e6:,.0f} MB + {memory['database_bytes'] / 1e6:,.0f} MB"
    return [
        "## Server over HTTP with a journal",
        table(["Penstock", "msg/s"], lines),
        f"The best rate with batch {SERVED_BATCH} or more is {best:,.0f} per second; the target of over "
        f"{SERVED_LEAST:,} {met(best > SERVED_LEAST)}.",
        f"Memory of the server and the database at {memory['messages']:,} messages (proportional set; shared pages "
        f"count once): {parts} = {total:,.0f} MB; the target of under {MEMORY_MB_MOST} MB "
        f"{met(total < MEMORY_MB_MOST, memory['messages'] >= MILLION)}.",
    ]


def fleet(polls: Row, queues: list[Row]) -> list[str]:
    lines = [[row["when"], *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "most_ms"))] for row in queues]
    all_in_time = polls["most_ms"] < ANSWER_MS_MOST and not polls["unanswered"]
    quick = queues[0]["p99_ms"] < POP_MS_MOST
    return [
        "## Two servers, and many queues",
        f"{polls['polls']:,} long polls at two servers on one database, and as many messages, pushed to both in turn: "
        f"delivered {polls['p50_ms']:.1f} ms after the push was sent (p50), {polls['p99_ms']:.1f} (p99), "
        f"{polls['most_ms']:.1f} at most; {polls['unanswered']} not delivered, {polls['to_two']} delivered twice. "
        f"The target of all under {ANSWER_MS_MOST} ms and none twice "
        f"{met(all_in_time and not polls['to_two'], polls['polls'] >= THOUSAND)}.",
        f"{queues[0]['queues']:,} queues in a namespace, one busy; a pop over the namespace, ms:",
        table(["", "p50", "p99", "most"], lines),
        f"The target of a p99 under {POP_MS_MOST} ms {met(quick, queues[0]['queues'] >= 10 * THOUSAND)}.",
    ]


def wakes(row: Row) -> list[str]:
    few = row["leases"] <= LEASES_A_PUSH_MOST * row["queues"]
    return [
        f"{row['queues']:,} queues, each with a long poll at one of two brokers, and a push to each at the other: "
        f"delivered {row['p50_ms']:.1f} ms after the push returned (p50), {row['p99_ms']:.1f} (p99; the pushes "
        f"themselves took {row['push']['p99_ms']:.1f}), {row['most_ms']:.1f} at "
        f"most, with {row['leases']:,} leases. The target of a p99 under {WAKE_MS_MOST} ms and at most "
        f"{LEASES_A_PUSH_MOST} leases per push {met(few and row['p99_ms'] < WAKE_MS_MOST, row['queues'] >= THOUSAND)}.",
    ]


def churn(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        name = label(row["system"]) + (", a transaction held open" if row["held"] else "")
        shares = (f"{row[share]:.2f}" for share in ("last_to_first", "aged_to_fresh"))
        lines.append([name, *(f"{each:,}" for each in row["tenths"]), *shares])
    count = rows[0]["messages"]
    worst = min((row["last_to_first"] for row in rows if row["system"] == "penstock"), default=0.0)
    judged = met(worst >= LAST_TO_FIRST_LEAST, count >= 2 * MILLION)
    beside = min((row["aged_to_fresh"] for row in rows if row["system"] == "penstock"), default=0.0)
    return [
        f"## {count:,} messages through one queue, 4 clients, 100 at a time",
        table(["msg/s in each tenth", *map(str, range(1, 11)), "last / first", "churned / new"], lines),
        f"Penstock's last tenth is at least {worst:.2f} of its first; the target of {LAST_TO_FIRST_LEAST} {judged}. "
        f"In alternation with a new database, the churned one then reaches at least {beside:.2f} of its rate.",
    ]


def skipped(missing: dict[str, str]) -> list[str]:
    lines = [f"- {BY_KEY[key].label}: {why}" for key, why in missing.items()]
    return ["## Skipped", "\n".join(lines)] if lines else []


def failures(rows: list[Row]) -> list[str]:
    found = [
        f"- {BY_KEY[row['system']].label}, {row['backlog']:,} waiting, batch {row['batch']}, {row['clients']} clients: "
        f"{row['error']}"
        for row in rows
        if "error" in row
    ]
    return ["## Failures", "\n".join(found)] if found else []
