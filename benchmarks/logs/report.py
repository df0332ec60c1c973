"""Formats the results as Markdown tables with their targets, and as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lib.report import table

Row = dict[str, Any]
SHARE_LEAST = 0.75
ARROW_GB_LEAST, ARROW_SHARE_LEAST = 1.0, 0.6
OPEN_MS_MOST = 1_000
FLAT_MOST = 1.5
MEMORY_BYTES_MOST = 8
LARGEST = 50_000_000


def verdict(met: bool) -> str:
    return "is met" if met else "is MISSED"


def as_markdown(results: dict[str, Any]) -> str:
    parts = ["# Log: results", about(results)]
    for section, write in (("append", appends), ("crowd", crowd), ("sequential", sequential), ("scale", scale)):
        if section in results:
            parts += write(results[section])
    return "\n\n".join(parts) + "\n"


def about(results: dict[str, Any]) -> str:
    machine, settings = results["machine"], results["settings"]
    return (
        f"{machine['date']}, {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['filesystem']}, Python {machine['python']}. Load average at the start {machine['load_before']}. "
        f"Medians of {settings['rounds']} rounds of {settings['round_s']} s, in which log and raw file take turns. "
        "Every append is synced (fdatasync); the raw file gets the same bytes, headers included."
    )


def appends(rows: list[Row]) -> list[str]:
    lines = [
        [
            f"{row['record_bytes']} bytes × {row['batch']}",
            f"{row['records_per_s']:,}",
            f"{row['raw_per_s']:,}",
            f"{row['share']:.0%}",
        ]
        for row in rows
    ]
    share = next(row["share"] for row in rows if (row["record_bytes"], row["batch"]) == (1024, 100))
    return [
        "## Appends of one producer, records per second",
        table(["batch", "log", "raw write + fsync", "share"], lines),
        f"The target of at least {SHARE_LEAST:.0%} at 1 KiB × 100 {verdict(share >= SHARE_LEAST)}: {share:.0%}.",
    ]


def crowd(rows: list[Row]) -> list[str]:
    lines = [
        [
            f"{row['record_bytes']} bytes, {row['how']}",
            f"{row['records_per_s']:,}",
            f"{row['raw_per_s']:,}",
            f"{row['share']:.0%}",
            f"{row['raw_single_per_s']:,}",
            f"{row['records_per_s'] / row['raw_single_per_s']:.1f}×",
        ]
        for row in rows
    ]
    return [
        f"## {rows[0]['producers']} producers of one record each, records per second",
        table(["", "log", "raw, all in one write + fsync", "share", "raw, one by one", "ratio"], lines),
    ]


def sequential(rows: list[Row]) -> list[str]:
    lines = [
        [
            f"{row['record_bytes']} bytes",
            f"{row['arrow_gb_per_s']:.2f} GB/s",
            f"{row['file_gb_per_s']:.2f} GB/s",
            f"{row['share']:.0%}",
            f"{row['arrow_rows_per_s'] / 1e6:.1f} M/s",
            f"{row['pages_rows_per_s'] / 1e6:.2f} M/s",
        ]
        for row in rows
    ]
    met = all(row["arrow_gb_per_s"] >= ARROW_GB_LEAST or row["share"] >= ARROW_SHARE_LEAST for row in rows)
    return [
        "## Sequential read with checksums verified",
        table(["", "to Arrow", "reading the file", "share", "rows to Arrow", "rows as objects"], lines),
        f"The target of {ARROW_GB_LEAST:.0f} GB/s or {ARROW_SHARE_LEAST:.0%} of reading the file {verdict(met)}.",
    ]


def scale(rows: list[Row]) -> list[str]:
    lines = [
        [
            f"{row['records']:,}",
            f"{row['bytes'] / 1e9:.2f} GB",
            f"{row['read_us']:.1f}",
            f"{row['read_p99_us']:.1f}",
            f"{row['open_ms']:.1f}",
            f"{row['open_to_write_ms']:.1f}",
            f"{row['memory_grown_bytes'] / 1e6:.1f} MB",
        ]
        for row in rows
    ]
    last, flat = rows[-1], rows[-1]["read_us"] / rows[0]["read_us"]
    header = ["records", "on disk", "random read, µs", "p99", "open, ms", "open to write, ms", "memory of a reader"]
    parts = ["## Effect of the log's size (64 bytes per record on disk)", table(header, lines)]
    if last["records"] >= LARGEST:
        parts.append(
            f"A random read takes {flat:.2f}× as long as in the smallest log; the target of at most {FLAT_MOST}× "
            f"{verdict(flat <= FLAT_MOST)}. The target of opening in under {OPEN_MS_MOST / 1000:.0f} s "
            f"{verdict(last['open_to_write_ms'] < OPEN_MS_MOST)}. The target of at most {MEMORY_BYTES_MOST} bytes of "
            "memory per record "
            f"{verdict(last['memory_bytes_per_record'] <= MEMORY_BYTES_MOST)}: {last['memory_bytes_per_record']}."
        )
    return parts


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4))
    rows = [*results.get("append", []), *results.get("crowd", [])]
    names = [
        f"{row['how']}\n{row['record_bytes']} B" if "how" in row else f"{row['record_bytes']} B\n×{row['batch']}"
        for row in rows
    ]
    places = range(len(rows))
    left.bar([place - 0.2 for place in places], [row["raw_per_s"] for row in rows], 0.38, color="#8c8c8c", label="raw")
    left.bar(
        [place + 0.2 for place in places], [row["records_per_s"] for row in rows], 0.38, color="#d1495b", label="log"
    )
    left.set_yscale("log")
    left.set_xticks(list(places), names, fontsize=6.5)
    left.set_title("Synced appends, records per second", fontsize=10, fontweight="bold", loc="left")
    left.legend(fontsize=8, frameon=False)
    sizes = results.get("scale", [])
    right.plot([row["records"] for row in sizes], [row["read_us"] for row in sizes], marker="o", color="#d1495b")
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.set_xlabel("records in the log", fontsize=9)
    right.set_title("One random read, µs", fontsize=10, fontweight="bold", loc="left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
