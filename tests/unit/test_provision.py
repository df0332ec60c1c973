"""The choice of a Java and a PostgreSQL: made once, remembered, and made again when it no longer holds."""

import json
from pathlib import Path

import pytest

from tools import provision


@pytest.fixture
def choice() -> dict[str, dict[str, str]]:
    """What `make provision` wrote before the suite began."""
    return json.loads(provision.CHOICE.read_text())


def test_the_chosen_java_runs_and_suits_spark(choice: dict[str, dict[str, str]]) -> None:
    java = choice["java"]
    assert provision.leading_number(java["version"]) in provision.JAVA_VERSIONS
    assert provision.probe_java(Path(java["home"], "bin/java"))["version"] == java["version"]


def test_the_chosen_postgres_makes_a_database_and_answers(choice: dict[str, dict[str, str]]) -> None:
    postgres = choice["postgres"]
    assert provision.probe_postgres(Path(postgres["bin"])) == {
        "bin": postgres["bin"],
        "version": postgres["version"],
    }


def test_a_folder_without_the_server_is_passed_over_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(provision.Unfit, match="initdb is missing"):
        provision.probe_postgres(tmp_path)


def test_a_java_too_old_is_passed_over_with_its_version(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nprintf ' java.home = /old\\n java.version = 11.0.2\\n'\n")
    java.chmod(0o755)
    with pytest.raises(provision.Unfit, match=r"11\.0\.2 is not within 17 to"):
        provision.probe_java(java)


def test_a_choice_whose_programs_have_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_java, postgres = tmp_path / "bin/java", tmp_path / "postgres"
    bin_java.parent.mkdir()
    bin_java.touch()
    postgres.touch()
    browser = {"path": str(bin_java), "version": "1"}
    remembered = {"key": "k", "java": {"home": str(tmp_path)}, "postgres": {"bin": str(tmp_path)}, "browser": browser}
    monkeypatch.setattr(provision, "CHOICE", tmp_path / "provision.json")
    provision.CHOICE.write_text(json.dumps(remembered))
    assert provision.still_good("k") == remembered
    assert provision.still_good("another lock") is None
    postgres.unlink()
    assert provision.still_good("k") is None


def test_every_lock_is_hashed_and_names_no_index() -> None:
    locks = sorted((provision.ROOT / "requirements").glob("*.txt"))
    assert locks
    for lock in locks:
        text = lock.read_text()
        assert text.count("==") <= text.count("--hash=sha256:")
        assert not any(mark in text for mark in ("://", "--index", "--find-links", "--trusted-host"))
