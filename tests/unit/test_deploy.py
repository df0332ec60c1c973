"""`deploy/` and docs/howto/scale-out.md name existing files, flags, settings and paths. They are not run here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli import cli
from penstock.config import Settings, load_settings
from penstock.server.api.operations import Operations

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
UNIT = (DEPLOY / "penstock.service").read_text(encoding="utf-8")
HAPROXY = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
HOWTO = (ROOT / "docs" / "howto" / "scale-out.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = pytest.importorskip("yaml").safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def check_command(words: list[str]) -> None:
    """Check that the command and the flags of a `penstock` command line exist."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, words
        command = found
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, words


def check_settings(text: str) -> None:
    for name in re.findall(r"PENSTOCK_([A-Z_]+)", text):
        assert name.lower() in Settings.__struct_fields__, name


def seconds(setting: str) -> int:
    found = re.search(rf"^\s*{setting} (\d+)s$", HAPROXY, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_the_image_is_built_from_existing_files() -> None:
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
    allowed = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE)
    assert all((ROOT / path).exists() for path in allowed)


def test_the_image_runs_an_existing_command_without_root() -> None:
    assert re.search(r"^USER penstock$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^VOLUME /data$", DOCKERFILE, re.MULTILINE)
    check_settings(DOCKERFILE)
    (health,) = re.findall(r"^  CMD \[(.*)\]$", DOCKERFILE, re.MULTILINE)
    check_command([word.strip(' "') for word in health.split(",")])
    check_command(["penstock", *re.findall(r'^CMD \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)])


def test_the_image_pins_every_dependency_of_the_server() -> None:
    locked = (ROOT / "requirements" / "deploy.txt").read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for extra in ("server", "postgres"):
        (wanted,) = re.findall(rf"^{extra} = \[\n(.*?)^\]", project, re.DOTALL | re.MULTILINE)
        for name in re.findall(r'^    "([a-z-]+)', wanted, re.MULTILINE):
            assert re.search(rf"^{name}==\S+ ", locked, re.MULTILINE), name


def test_the_balancer_lists_every_server_of_the_compose_file(compose: dict[str, Any]) -> None:
    services = compose["services"]
    servers = {name for name, service in services.items() if service.get("image") == "penstock"}
    assert len(servers) == 2
    assert set(re.findall(r"^    server (\S+) \1:8888$", HAPROXY, re.MULTILINE)) == servers
    for name in servers:
        service = services[name]
        check_settings(" ".join(service["environment"]))
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert set(service["depends_on"]) <= set(services)
    (config,) = services["balancer"]["volumes"]
    assert (DEPLOY / config.partition(":")[0]).is_file()


def test_stop_and_proxy_timeouts_are_long_enough(compose: dict[str, Any]) -> None:
    defaults = load_settings({}, environ={})
    for name in ("server-1", "server-2"):
        assert int(compose["services"][name]["stop_grace_period"].rstrip("s")) * 1000 > defaults.grace_ms
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop) * 1000 > defaults.grace_ms
    assert min(seconds("timeout server"), seconds("timeout client")) * 1000 > defaults.wait_ms_max


def test_the_balancer_checks_an_existing_readiness_path() -> None:
    (path,) = re.findall(r"httpchk GET (\S+)$", HAPROXY, re.MULTILINE)
    routes = {route.path: route.right for route in Operations.routes(Operations.__new__(Operations))}
    assert routes[path] == "public"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    check_settings(UNIT)
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    program, *rest = shlex.split(command)
    check_command(["penstock", *rest])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "penstock.service"
    unit.write_text(UNIT.replace(program, sys.executable), encoding="utf-8")
    verdict = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=60
    )
    assert "penstock.service" not in verdict.stderr
    assert verdict.returncode == 0 or not verdict.stderr


def test_the_commands_of_the_how_to_exist() -> None:
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", HOWTO, re.DOTALL)).splitlines()
    ours = [shlex.split(line) for line in lines if line.startswith("penstock ")]
    assert len(ours) >= 3
    for words in ours:
        check_command(words)
    for path in re.findall(r"\]\((\.\./\S+|[a-z-]+\.md)\)", HOWTO):
        assert (ROOT / "docs" / "howto" / path).exists(), path
    for name in re.findall(r"`([a-z_]+_(?:ms|max|size)(?:_max)?)`", HOWTO):
        assert name in Settings.__struct_fields__, name


def test_the_audit_fails_if_a_package_cannot_be_looked_up() -> None:
    # Without --strict, pip-audit reports no vulnerabilities for packages that it skipped.
    (command,) = re.findall(r"pip-audit .*", (ROOT / "Makefile").read_text("utf-8"))
    assert "--strict" in command.split()
