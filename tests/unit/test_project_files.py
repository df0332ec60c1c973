"""Project files name existing commands and targets."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_pre_commit_runs_every_check_of_the_gate() -> None:
    gate = re.search(r"^define gate\n(.*?)^endef", MAKEFILE, re.DOTALL | re.MULTILINE)
    assert gate is not None
    checks = re.findall(r"^\$\(BIN\)/(.+?) \|\| ", gate[1], re.MULTILINE)
    hooks = re.findall(
        r"^ +entry: \.venv/bin/(.+)$", (ROOT / ".pre-commit-config.yaml").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(hooks) == sorted(check for check in checks if not check.startswith("pytest "))


def test_every_make_target_that_the_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    documents = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for path in documents:
        for named in re.findall(r"`make ([a-z -]+)", path.read_text("utf-8")):
            assert set(named.split()) <= targets, (path.name, named)


def test_the_dev_container_runs_an_existing_make_target() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    program, target = container["postCreateCommand"].split()
    assert program == "make"
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
