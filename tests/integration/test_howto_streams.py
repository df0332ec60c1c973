"""What docs/howto/streams.md shows is run here, word for word."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.command_line import PENSTOCK, clean_environment
from tests.integration.serving import Running

HOWTO = (Path(__file__).parents[2] / "docs" / "howto" / "streams.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", HOWTO, re.DOTALL)


def run(script: str, folder: Path, **environment: str) -> str:
    path = f"{Path(PENSTOCK).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=clean_environment(PATH=path, **environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("over", ["file", "server"])
def test_the_commands_run(over: str, server: Running, tmp_path: Path) -> None:
    script = blocks("bash")[0]
    if over == "file":
        script = re.sub(r"(penstock stream \w+ orders)", r"\1 --db tasks.db", script)
        shown = run(script, tmp_path)
    else:
        shown = run(script, tmp_path, PENSTOCK_URL=f"http://127.0.0.1:{server.port}")
    assert '{"order":2}' in shown
    assert (tmp_path / "orders.ndjson").read_text() == '{"order":1}\n{"order":2}\n'
    assert "next                5" in shown
    assert "ok        yes" in shown


@pytest.mark.parametrize("over", ["file", "server"])
def test_the_program_runs(
    over: str, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "".join(blocks("python")).replace('"orders"', '"orders-of-a-program"')
    if over == "server":
        code = code.replace("sqlite:///tasks.db", f"http://127.0.0.1:{server.port}")
    names: dict[str, object] = {}
    exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["0 {'order': 1}", "1 b'bytes'", "2 text"]
    assert lines[4:] == ["4 ['offset', 'timestamp', 'data']"]
    names["client"].close()  # type: ignore[attr-defined]


def test_the_requests_run(server: Running, tmp_path: Path) -> None:
    script = blocks("bash")[1].replace("localhost:8888", f"127.0.0.1:{server.port}")
    shown = run(script.replace("curl ", "curl -sS --fail-with-body "), tmp_path)
    assert '{"first":2,"last":2,"records":1}' in shown
    assert '"data":"cmF3IGJ5dGVz","encoding":"base64"' in shown
    assert '"lag":0' in shown
