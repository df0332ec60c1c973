"""The alert rules and the dashboard in deploy/ load, and use existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KNOWN = set(re.findall(r"\| `(penstock_\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")))
SUFFIXES = re.compile(r"_(bucket|sum|count)$")


def unknown(expression: str) -> set[str]:
    found = set(re.findall(r"penstock_\w+", expression))
    return {name for name in found if name not in KNOWN and SUFFIXES.sub("", name) not in KNOWN}


def test_alerts_use_existing_metrics() -> None:
    yaml: Any = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert unknown(rule["expr"]) == set(), rule["alert"]
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"]["summary"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_configuration() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(DEPLOY / "prometheus.yaml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_uses_existing_metrics() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert unknown(target["expr"]) == set(), panel["title"]
            assert target["expr"].count("(") == target["expr"].count(")")
