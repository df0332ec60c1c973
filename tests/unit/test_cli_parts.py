"""Parts of the command line: options from the model, the server's address, tables, ids and metrics."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from penstock.cli import COMMANDS, cli
from penstock.cli.common import Leases, server_of
from penstock.cli.metrics import _sample
from penstock.cli.output import Output
from penstock.cli.queue_create import create
from penstock.core.model import QueueOptions
from penstock.errors import InvalidInput


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all settings that the test does not make itself."""
    for name in ("URL", "TOKEN", "PORT", "HOST", "AUTH_TOKEN", "CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    for name in ("AUTH_TOKEN", "LISTEN_ADDR", "PORT", "HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_every_option_of_a_queue_is_a_flag() -> None:
    flags = {parameter.name for parameter in create.params}
    assert {field.name for field in msgspec.structs.fields(QueueOptions)} | {"visibility_ms", "secret"} <= flags
    for parameter in create.params:
        if isinstance(parameter, click.Option) and parameter.name != "as_json":
            assert parameter.help, parameter.name


def test_every_command_is_listed_with_a_line_of_help() -> None:
    context = click.Context(cli)
    for name, (_, line) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert line.endswith(".")


@pytest.mark.parametrize(
    ("group", "alias", "name"),
    [("queue", "add", "create"), ("queue", "set", "update"), ("queue", "rm", "delete"), ("message", "get", "take")],
)
def test_aliases_of_commands_work_and_are_not_listed(group: str, alias: str, name: str) -> None:
    commands = cli.get_command(click.Context(cli), group)
    assert isinstance(commands, click.Group)
    context = click.Context(commands)
    assert commands.get_command(context, alias) is commands.get_command(context, name) is not None
    assert name in commands.list_commands(context)
    assert alias not in commands.list_commands(context)


def test_the_default_server_listens_on_port_8888() -> None:
    assert server_of(None, None) == ("http://127.0.0.1:8888", None)


def test_the_cli_finds_a_server_by_the_servers_own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('port = 9000\nauth_token = "t"\nhost = "0.0.0.0"\n')
    assert server_of(None, None) == ("http://127.0.0.1:9000", "t")
    assert server_of("http://other", None) == ("http://other", None)
    monkeypatch.setenv("PENSTOCK_PORT", "9001")
    assert server_of(None, "mine") == ("http://127.0.0.1:9001", "mine")
    monkeypatch.setenv("HOST", "::")
    monkeypatch.setenv("PENSTOCK_HOST", "::")
    assert server_of(None, None)[0] == "http://[::1]:9001"


def test_the_file_has_a_table_for_clients(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('port = 9000\n[client]\nurl = "https://far"\ntoken = "t"\n')
    assert server_of(None, None) == ("https://far", "t")
    assert server_of("https://far", None) == ("https://far", "t")
    assert server_of("https://farther", None) == ("https://farther", None)


@pytest.mark.parametrize("text", ['[client]\nurl = "https://far"\n', 'host = "far"\n'])
def test_the_environments_token_is_not_sent_to_a_server_named_in_the_folder(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "penstock.toml").write_text(text)
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret")
    with pytest.raises(InvalidInput, match=r"PENSTOCK_TOKEN is not sent to http.*far"):
        server_of(None, None)
    assert server_of("https://mine", None) == ("https://mine", "secret")
    assert server_of(None, "typed")[1] == "typed"
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "penstock.toml"))
    assert server_of(None, None)[1] == "secret"


def test_the_environments_token_is_sent_to_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[client]\nurl = "http://127.0.0.1:9000"\n')
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret")
    assert server_of(None, None) == ("http://127.0.0.1:9000", "secret")


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("7", [{"id": 7, "token": None}]),
        ("7:ab,8 : 9".replace(" : ", ":"), [{"id": 7, "token": "ab"}, {"id": 8, "token": "9"}]),
        (" 7,\n8\t", [{"id": 7, "token": None}, {"id": 8, "token": None}]),
    ],
)
def test_ids_and_tokens_are_parsed(text: str, items: list[dict[str, Any]]) -> None:
    assert Leases().convert(text, None, None) == items


def test_columns_are_as_wide_as_their_widest_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    Output(False).table(("A", "LONG HEADING", "C"), [("x\x1b[1m", 1, None), ("żółć-long", 1.50, True)], empty="")
    written = stdout.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert written == ("A          LONG HEADING  C\nx\\x1b[1m   1             -\nżółć-long  1.5           yes\n")


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("up 1.0", {"name": "up", "labels": {}, "value": 1.0}),
        ('a{b="c",d="e"} 2.5', {"name": "a", "labels": {"b": "c", "d": "e"}, "value": 2.5}),
        (r'a{b="say \"hi\", }{"} +Inf', {"name": "a", "labels": {"b": 'say "hi", }{'}, "value": "+Inf"}),
    ],
)
def test_metrics_lines_are_parsed(line: str, sample: dict[str, Any]) -> None:
    assert _sample(line) == sample
