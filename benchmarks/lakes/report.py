"""Formats the results of the pipeline as tables with verdicts, and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]
PARQUET_SHARE = {"bodies": 0.5, "no bodies": 0.8}
TUPLES_LEAST = 10
CORES_LEAST = 1.6
FIRST_ANSWER_MOST = 1.5
WARM_MOST = 0.5
SERVER_GROWTH_MOST = 0.05
HISTORY_STEP_MOST = 1.2


def as_markdown(results: dict[str, Any]) -> str:
    parts = [
        f"{results['events']:,} events with 200-byte bodies, a journal of {results['journal_bytes'] / 1e6:,.0f} MB"
    ]
    for name, section in (
        ("reads", reads),
        ("cores", cores),
        ("pipeline", pipeline),
        ("start", start),
        ("fresh", fresh),
        ("cost", cost),
        ("cost_of_history", history),
    ):
        if results.get(name):
            parts += section(results)
    return "\n\n".join(parts) + "\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(good: bool) -> str:
    return "is met" if good else "**is missed**"


def reads(results: dict[str, Any]) -> list[str]:
    rows, size = results["reads"], results["journal_bytes"] / results["events"]
    rates = {row["way"]: row["events_s"] for row in rows}
    lines = [
        [row["way"], f"{row['seconds']:.2f}", f"{row['events_s'] / 1e6:.2f}", f"{row['events_s'] * size / 1e6:,.0f}"]
        for row in rows
    ]
    parts = ["## Reading", table(["way", "s", "M events/s", "MB/s of journal"], lines)]
    for bodies, least in PARQUET_SHARE.items():
        for how in ("summed", "only read"):
            ours, parquet = rates.get(f"source, {bodies}, {how}"), rates.get(f"Parquet, {bodies}, {how}")
            if ours and parquet:
                target = f"; the target of {least:.0%} {verdict(ours / parquet >= least)}" if how == "summed" else ""
                parts.append(f"{bodies.capitalize()}, {how}: {ours / parquet:.0%} of Parquet{target}.")
            python = rates.get(f"source in Python, {bodies}, {how}")
            if how == "summed" and (ready := rates.get(f"ready-made batches, {bodies}, summed")) and ours and parquet:
                parts.append(
                    f"A Python source that returns one ready-made batch repeatedly, without reading, reaches "
                    f"{ready / parquet:.0%} of Parquet"
                    + (f"; our Python source, without the JVM reader, {python / parquet:.0%}." if python else ".")
                )
    for form in ("events", "columns"):
        if tuples := rates.get(f"{form} as tuples, bodies, summed"):
            share = rates["source, bodies, summed"] / tuples
            good = verdict(share >= TUPLES_LEAST)
            parts.append(f"{share:.1f}× {form} as tuples; the target of {TUPLES_LEAST}× {good}.")
    return parts


def cores(results: dict[str, Any]) -> list[str]:
    lines, parts = [], ["## Scaling from one core to two"]
    for row in results["cores"]:
        gain = row["two_events_s"] / row["one_events_s"]
        lines.append(
            [row["way"], f"{row['one_events_s'] / 1e6:.2f}", f"{row['two_events_s'] / 1e6:.2f}", f"{gain:.2f}×"]
        )
        if row["way"] == "source, bodies, summed":
            parts.append(f"The source gains {gain:.2f}×; the target of {CORES_LEAST}× {verdict(gain >= CORES_LEAST)}.")
    return [*parts, table(["way", "1 core, M events/s", "2 cores", "gain"], lines)]


def pipeline(results: dict[str, Any]) -> list[str]:
    row = results["pipeline"]
    return [
        "## Journal to gold",
        f"{row['seconds']} s in {row['steps']} steps, {row['events_s']:,} events/s, with a driver of 2 GiB.",
        f"Peak memory: Java {row['java_mb_peak']:,} MB, Python workers {row['workers_mb_peak']:,} MB, "
        f"driver {row['driver_mb_peak']:,} MB, together {row['all_mb_peak']:,} MB.",
    ]


def start(results: dict[str, Any]) -> list[str]:
    rows = {row["what"]: row["seconds"] for row in results["start"]}
    bare = rows["bare Spark session"]
    lines = [[what, f"{seconds:.2f}", f"{seconds / bare:.2f}×"] for what, seconds in rows.items()]
    parts = ["## Time to the first result", table(["command", "s", "relative to a bare session"], lines)]
    for what in ("pipeline sql", "pipeline run --once"):
        cold, archive, resident = (rows[f"{what}, {how}"] for how in ("cold", "archive", "resident"))
        parts.append(
            f"`{what}`: the target of at most {FIRST_ANSWER_MOST}× a bare session when cold "
            f"{verdict(cold <= FIRST_ANSWER_MOST * bare)}; the target of at most half of cold when warm "
            f"{verdict(resident <= WARM_MOST * cold)} with a resident JVM ({resident / cold:.0%}), "
            f"{verdict(archive <= WARM_MOST * cold)} with a class archive ({archive / cold:.0%})."
        )
    return parts


def fresh(results: dict[str, Any]) -> list[str]:
    lines = [[f"{row['events_s']:,}", f"{row['p50_s']:.2f}", f"{row['p95_s']:.2f}"] for row in results["fresh"]]
    return ["## Freshness of the gold tables", table(["events/s", "p50, s", "p95, s"], lines)]


def cost(results: dict[str, Any]) -> list[str]:
    row = results["cost"]
    good = verdict(row["growth"] <= SERVER_GROWTH_MOST)
    return [
        "## Cost of the pipeline for the server",
        f"CPU time per message at {row['events_s']:,} events/s: {row['alone_us']} µs without the pipeline, "
        f"{row['followed_us']} µs with it: {row['growth']:+.1%}; the target, at most {SERVER_GROWTH_MOST:.0%}, {good}.",
    ]


def history(results: dict[str, Any]) -> list[str]:
    found = results["cost_of_history"]
    names = ("days", "written", "new_files", "files_listed", "read_by_spark", "jobs", "files", "checkpoint", "seconds")
    steps = [[f"{row[name]:,}" for name in names] for row in found["steps"]]
    written = found["steps"][-1]["written"] / found["steps"][0]["written"]
    parts = [
        "## Cost of history",
        f"A step of {found['events']:,} events, a day's, after so many days; the step with the newest day.",
        table(list(names), steps),
        f"Bytes written after 100 days: {written:.2f}× of those after one; at most {HISTORY_STEP_MOST}× "
        f"{verdict(written <= HISTORY_STEP_MOST)}.",
        "Bytes read for one queue on the newest day:",
    ]
    by_reader: dict[str, list[int]] = {}
    for row in found["queries"]:
        by_reader.setdefault(row["reader"], []).append(row["read"])
    lines = [
        [reader, *(f"{read:,}" for read in reads), f"{reads[-1] / max(1, reads[0]):.2f}×"]
        for reader, reads in by_reader.items()
    ]
    removal = found["removal"]
    share = removal["read_by_spark"] / removal["bronze_bytes"]
    return [
        *parts,
        table(["reader", "1 day", "10 days", "100 days", "growth"], lines),
        f"Deleting a queue with one message from the first day reads {removal['read_by_spark']:,} bytes, {share:.1%} "
        f"of bronze, in {removal['seconds']} s.",
    ]


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6))
    rows = results.get("reads", [])
    left.barh(
        [row["way"] for row in rows], [row["events_s"] / 1e6 for row in rows], color=[_colour(row) for row in rows]
    )
    left.invert_yaxis()
    if rows:
        left.set_xscale("log")
    left.set_title("Reading the journal, M events/s", fontsize=10, fontweight="bold", loc="left")
    rows = results.get("start", [])
    right.barh([row["what"] for row in rows], [row["seconds"] for row in rows], color="#2e6f95")
    right.invert_yaxis()
    right.set_title("First answer, s", fontsize=10, fontweight="bold", loc="left")
    for axes in (left, right):
        axes.tick_params(labelsize=7.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _colour(row: Row) -> str:
    return "#d1495b" if row["way"].startswith("source") else "#8c8c8c"
