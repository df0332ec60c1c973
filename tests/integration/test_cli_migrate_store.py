"""`penstock migrate-store`, and the commands that docs/howto/migrate-store.md shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import penstock as sdk
from tests.integration.command_line import PENSTOCK, clean_environment, penstock

HOWTO = (Path(__file__).parents[2] / "docs" / "howto" / "migrate-store.md").read_text(encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "penstock-data"
    folder.mkdir()
    with sdk.connect(f"sqlite:///{folder}/penstock.db") as client:
        queue = client.create_queue("orders")
        queue.push_many([{"order": number} for number in range(50)])
        queue.lease(10)
    return folder


def test_the_command_reports_what_it_moved(data: Path, store: str, tmp_path: Path) -> None:
    there = penstock("migrate-store", str(data), store, "--json")
    assert there.code == 0
    assert there.json["queues"] == [
        {"name": "orders", "ready": 40, "scheduled": 0, "leased": 10, "dead": 0, "archived": 0}
    ]
    assert (there.json["messages"], there.json["resumed"], there.json["left_behind"]) == (50, False, {})
    back = penstock("migrate-store", store, f"sqlite:///{tmp_path}/back.db")
    assert back.code == 0
    assert re.search(r"^name +ready +scheduled +leased +dead +archived\norders +40 +0 +10 +0 +0$", back.out, re.M)
    assert there.json["checksum"] in back.err


def test_a_refusal_is_one_line_with_an_exit_code(data: Path, store: str, tmp_path: Path) -> None:
    with sdk.connect(f"sqlite:///{data}/penstock.db"):
        used = penstock("migrate-store", str(data), store)
    assert used.code == 1
    assert "open" in used.err
    same = penstock("migrate-store", str(data), str(tmp_path / "other.db"))
    assert same.code == 2
    assert "penstock backup" in same.err
    assert penstock("migrate-store", str(data), store).code == 0
    again = penstock("migrate-store", str(data), store)
    assert again.code == 1
    assert again.err.startswith("error: ")
    assert again.err.count("\n") == 1


def test_the_commands_of_the_how_to_run(data: Path, store: str) -> None:
    script = "\n".join(re.findall(r"```bash\n(.*?)```", HOWTO, re.DOTALL))
    served = 'penstock serve --store "$STORE"'
    assert served in script
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(served, "")],
        cwd=data.parent,
        env=clean_environment(PATH=f"{Path(PENSTOCK).parent}:/usr/bin:/bin", STORE=store),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with sdk.connect(f"sqlite:///{data.parent}/back.db") as client:
        assert client.queue("orders").info().ready == 40
