"""Each package imports only packages of lower layers."""

from __future__ import annotations

import ast
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent
# Packages on the same line do not import each other.
LAYERS = (
    ("errors",),
    ("core",),
    ("group_commit", "postgres"),
    ("log",),
    ("journal",),
    ("store",),
    ("broker",),
    ("wire",),
    ("client",),
    ("config",),
    ("lite",),
    ("pipeline", "migration"),
    ("ops",),
    ("server",),
    ("demo",),
    ("cli",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
PUBLIC = {"", "__main__", "aio", "asgi"}
LAKE_READERS = {"penstock.server.dashboard.lake", "penstock.server.metrics_history"}
SERVER_STARTERS = {"penstock.cli.serve", "penstock.demo.run"}


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("penstock", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] == "penstock"}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


ALL = modules()


def forbidden(module: str) -> set[str]:
    """Return the imports of a module that break the rules."""
    here = package_of(module)
    found = set()
    for name in imported(ALL[module]) & set(ALL):
        there = package_of(name)
        if there in (here, ""):
            continue
        if RANK[there] >= RANK[here]:
            found.add(name)
        if (here, there) == ("server", "pipeline") and module not in LAKE_READERS:
            found.add(name)
        if there == "server" and module not in SERVER_STARTERS:
            found.add(name)
    return found


def test_a_package_imports_only_lower_layers() -> None:
    layered = [module for module in ALL if package_of(module) in RANK]
    assert {module: names for module in layered if (names := forbidden(module))} == {}


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in ALL} - PUBLIC == set(RANK)


def classes(package: str) -> set[str]:
    return {
        node.name
        for module, path in ALL.items()
        if package_of(module) == package
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def test_server_sdk_and_cli_share_one_set_of_wire_schemas() -> None:
    for package in ("client", "server", "cli"):
        assert classes(package) & classes("wire") == set()
