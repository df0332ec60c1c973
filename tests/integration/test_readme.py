"""What the README shows is run here, word for word."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.serving import Running

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_the_embedded_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[0], names)
    assert capsys.readouterr().out == "b'resize cat.png'\n1\n"
    names["queue"].close()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_in_an_empty_folder")
@pytest.mark.parametrize("over", ["file", "server"])
def test_the_client_example_runs(over: str, server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks("python")[1]
    if over == "server":
        assert "sqlite:///tasks.db" in code
        code = code.replace("sqlite:///tasks.db", f"http://127.0.0.1:{server.port}")
    names: dict[str, object] = {}
    exec(code, names)
    assert capsys.readouterr().out == "{'to': 'ada@example.com'}\n"
    names["client"].close()  # type: ignore[attr-defined]


def test_the_curl_examples_run(server: Running) -> None:
    script = blocks("bash")[0].replace("localhost:8888", f"127.0.0.1:{server.port}")
    script = script.replace("curl ", "curl -sS --fail-with-body ").replace('"emails"', '"letters"')
    script = script.replace("/queues/emails/", "/queues/letters/")
    done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"payload":{"to": "ada"}' in done.stdout


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
