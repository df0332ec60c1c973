"""The class-data archive of Spark: used if present, created by one process at a time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.runtime import cds_archive, jar
from penstock.pipeline.runtime.java import find_java

pytestmark = pytest.mark.spark


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cds_archive.archive_of(find_java())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found: list[list[str]] = []

    def start(command: list[str], **_: Any) -> None:
        found.append(command)

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


def test_an_archive_is_mapped_once_it_is_there(archive: Path) -> None:
    assert cds_archive.java_options(find_java(), None) == []
    archive.touch()  # Java left none.
    assert cds_archive.java_options(find_java(), None) == []
    archive.write_bytes(b"classes")
    assert f"-XX:SharedArchiveFile={archive}" in cds_archive.java_options(find_java(), None)


def test_a_command_has_it_made_by_another_process(archive: Path, started: list[list[str]]) -> None:
    assert cds_archive.keep_soon()
    assert [command[1:] for command in started] == [["-m", "penstock.pipeline.runtime.cds_archive"]]


def test_it_is_made_neither_again_nor_by_two(archive: Path, started: list[list[str]]) -> None:
    mark = archive.with_suffix(cds_archive.MAKING)
    mark.touch()
    assert not cds_archive.keep_soon()
    os.utime(mark, (0, 0))  # Whoever made it was killed.
    assert cds_archive.keep_soon()
    archive.touch()
    assert not cds_archive.keep_soon()
    assert len(started) == 1


def test_it_is_made_again_for_another_jar_of_the_reader(
    archive: Path, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.touch()
    assert not cds_archive.keep_soon()
    monkeypatch.setattr(jar, "FOLDER", tmp_path)
    assert cds_archive.keep_soon()
    cds_archive.archive_of(find_java()).touch()
    assert not cds_archive.keep_soon()
    jar.jar_path().write_bytes(b"other classes")
    assert cds_archive.keep_soon()
    assert len(started) == 2


def test_only_the_newest_archives_stay(archive: Path) -> None:
    made = [archive.with_name(f"spark-{number}.jsa") for number in range(cds_archive.ARCHIVES_MAX + 2)]
    for number, path in enumerate(made):
        path.touch()
        os.utime(path, (number, number))
    cds_archive._remove_old(archive.parent)
    assert sorted(archive.parent.glob("*.jsa")) == made[2:]
