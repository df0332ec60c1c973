"""Describes the machine, the disk and the versions, without names of people or hosts."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from .systems import System


def facts(root: Path) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "filesystem": filesystem(root),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def versions(systems: tuple[type[System], ...]) -> dict[str, str]:
    found = {system.package: version(system.package) for system in systems if system.package}
    # Penstock may use its own SQLite, which is newer than that of the standard module.
    if "apsw" in sys.modules:
        found["apsw"] = version("apsw")
    return found


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def filesystem(root: Path) -> str:
    """Return the type of the file system that contains `root`, from the longest mount point above it."""
    above = [part for part in psutil.disk_partitions(all=True) if root.is_relative_to(part.mountpoint)]
    return max(above, key=lambda part: len(part.mountpoint)).fstype if above else "unknown"
