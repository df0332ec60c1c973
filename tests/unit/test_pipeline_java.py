"""Spark runs on the machine's Java if it is suitable, and otherwise on the Java of a wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.pipeline.runtime.java import find_java


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fake_java(home: Path, version: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')


def test_a_suitable_java_of_the_machine_is_used(without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(without_java / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(without_java / "jdk"))
    found = find_java()
    assert (found.home, found.version, found.origin) == (without_java / "jdk", "17.0.15", "machine")


def test_a_java_that_is_too_old_is_skipped(without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(without_java / "jdk", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(without_java / "jdk"))
    assert find_java().origin == "wheel"


def test_the_java_of_a_wheel_runs_without_a_module_that_spark_requests(without_java: Path) -> None:
    found = find_java()
    command = [str(found.home / "bin/java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={})
    assert done.returncode == 0, done.stderr
    assert found.version in done.stderr
