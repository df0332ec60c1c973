"""The choice of Java, PostgreSQL and browser is remembered, and made again when it is no longer valid."""

import json
from pathlib import Path

import pytest

from tools import provision


@pytest.fixture
def choice() -> dict[str, dict[str, str]]:
    """The choice that `make provision` made before the suite started."""
    return json.loads(provision.CHOICE.read_text())


def test_the_chosen_java_runs_and_is_supported_by_spark(choice: dict[str, dict[str, str]]) -> None:
    java = choice["java"]
    assert provision.leading_number(java["version"]) in provision.JAVA_VERSIONS
    assert provision.probe_java(Path(java["home"], "bin/java"))["version"] == java["version"]


def test_the_chosen_postgres_creates_a_database_and_responds(choice: dict[str, dict[str, str]]) -> None:
    postgres = choice["postgres"]
    assert provision.probe_postgres(Path(postgres["bin"])) == {
        "bin": postgres["bin"],
        "version": postgres["version"],
    }


def test_a_folder_without_the_server_is_skipped_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(provision.Unfit, match="initdb is missing"):
        provision.probe_postgres(tmp_path)


def test_a_java_that_is_too_old_is_skipped_with_its_version(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nprintf ' java.home = /old\\n java.version = 11.0.2\\n'\n")
    java.chmod(0o755)
    with pytest.raises(provision.Unfit, match=r"11\.0\.2 is not within 17 to"):
        provision.probe_java(java)


def test_a_choice_with_missing_programs_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_java, postgres = tmp_path / "bin/java", tmp_path / "postgres"
    bin_java.parent.mkdir()
    bin_java.touch()
    postgres.touch()
    remembered = {"key": "k", "java": {"home": str(tmp_path)}, "postgres": {"bin": str(tmp_path)}}
    monkeypatch.setattr(provision, "CHOICE", tmp_path / "provision.json")
    provision.CHOICE.write_text(json.dumps(remembered))
    assert provision.still_good("k") == remembered
    assert provision.still_good("another lock") is None
    postgres.unlink()
    assert provision.still_good("k") is None


CHROMIUM = """#!/bin/sh
case "$1" in --version) echo "Chromium 156.0.1" ;; *) echo "<p>answer 42</p>" ;; esac
"""
APT_GET = """#!/bin/sh
echo "$@" >> {folder}/asked
[ "$1" = update ] && exit 0
[ -e {folder}/tried ] || {{ touch {folder}/tried; echo "E: could not fetch"; exit 100; }}
mv {folder}/waiting {folder}/chromium
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of PATH, in a process that appears to run as root."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(provision, "BROWSERS", ("chromium-of-this-test",))
    monkeypatch.setattr(provision.os, "geteuid", lambda: 0)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_browser_is_installed_if_allowed_and_a_failure_is_retried(
    programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program(programs / "waiting", CHROMIUM)
    program(programs / "apt-get", APT_GET.format(folder=programs).replace("/chromium", "/chromium-of-this-test"))
    found = provision.installed_browser()
    assert found == {"path": str(programs / "chromium-of-this-test"), "version": "156.0.1"}
    verbs = [line.split()[0] for line in (programs / "asked").read_text().splitlines()]
    assert verbs == ["update", "install", "update", "install"]
    assert "apt-get did not install chromium: E: could not fetch" in capfd.readouterr().err


def test_without_the_right_to_install_a_browser_the_command_is_printed(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provision.os, "geteuid", lambda: 1000)
    assert provision.installed_browser() is None
    assert "apt-get install chromium" in capfd.readouterr().err


def test_a_browser_that_cannot_open_a_page_is_skipped(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program(programs / "chromium-of-this-test", "#!/bin/sh\necho 'Chromium 1.0, install it with snap'\n")
    assert provision.find_browser() is None
    assert "it does not open a page" in capfd.readouterr().err


def test_every_lock_is_hashed_and_names_no_index() -> None:
    locks = sorted((provision.ROOT / "requirements").glob("*.txt"))
    assert locks
    for lock in locks:
        text = lock.read_text()
        assert text.count("==") <= text.count("--hash=sha256:")
        assert not any(mark in text for mark in ("://", "--index", "--find-links", "--trusted-host"))
