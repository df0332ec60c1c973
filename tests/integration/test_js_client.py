"""Runs the tests of the JavaScript client, each file in its own Node process with its own servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.javascript import CLIENT, install, node
from tests.integration.serving import Running

FILES = sorted(path.name for path in (CLIENT / "tests").glob("*.test.js"))
HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "javascript.md"
README = CLIENT / "README.md"


@pytest.mark.parametrize("name", FILES)
def test_the_client_passes_its_own_tests(name: str) -> None:
    node("--test", CLIENT / "tests" / name)


def test_events_are_the_same_over_nodes_built_in_websocket() -> None:
    if int(node("-p", "process.versions.node.split('.')[0]")) < 20:
        pytest.skip("this version of Node has no WebSocket")
    node("--test", CLIENT / "tests" / "events.test.js", NODE_OPTIONS="--experimental-websocket")


def blocks(page: Path) -> list[str]:
    return re.findall(r"```js\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [HOWTO, README], ids=["howto", "readme"])
def test_the_programs_in_the_documentation_run(page: Path, server: Running, tmp_path: Path) -> None:
    install(tmp_path, "penstock-mq")
    programs = blocks(page)
    assert programs
    for number, program in enumerate(programs):
        path = tmp_path / f"program{number}.js"
        path.write_text(program.replace("http://localhost:8888", f"http://127.0.0.1:{server.port}"))
        shown = node(path)
        for expected in re.findall(r"console\.log\(.*?\) // (.*)", program):
            assert expected in shown


def test_the_client_needs_no_other_package() -> None:
    sources = "".join(path.read_text() for path in (CLIENT / "src").glob("*.js"))
    imported = set(re.findall(r"(?:from|import\()\s*'([^'.][^']*)'", sources))
    assert {name for name in imported if not name.startswith("node:")} == set()
