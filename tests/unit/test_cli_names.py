"""Every command takes a queue's name as an option or as an argument."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.cli.common import QUEUE


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


def takes_another_name(command: click.Command) -> bool:
    return any(isinstance(parameter, click.Argument) for parameter in command.params)


def names_a_queue(parameter: click.Parameter) -> bool:
    return "--queue" in parameter.opts or ("--name" in parameter.opts and parameter.type is QUEUE)


TAKE_A_QUEUE = {
    path: command
    for path, command in commands(cli)
    if any(map(names_a_queue, command.params)) and not takes_another_name(command)
}


def test_commands_that_take_a_queue_are_found() -> None:
    assert {("queue", "create"), ("message", "enqueue"), ("dlq", "list"), ("stats",), ("journal", "tail")} <= set(
        TAKE_A_QUEUE
    )


@pytest.mark.parametrize("path", TAKE_A_QUEUE, ids=" ".join)
def test_the_name_may_stand_bare(path: tuple[str, ...]) -> None:
    command = TAKE_A_QUEUE[path]
    (option,) = filter(names_a_queue, command.params)
    others = [
        word
        for each in command.params
        if each.required and each is not option
        for word in (each.opts[0], "1" if isinstance(each, click.Option) else "")
    ]
    bare = command.make_context(path[-1], ["emails", *others], resilient_parsing=True)
    named = command.make_context(path[-1], [option.opts[0], "emails", *others], resilient_parsing=True)
    assert option.name is not None
    assert bare.params[option.name] == named.params[option.name] == "emails"


def test_as_the_dashboard_shows_it(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, [*words, "--db", str(tmp_path / "q.db")])
        assert done.exit_code == 0, done.output
        return done.output

    run("queue", "add", "emails")
    run("message", "enqueue", "emails", "--payload", "1")
    assert json.loads(run("stats", "emails", "--json"))["ready"] == 1
    assert json.loads(run("queue", "peek", "emails", "--json"))["messages"][0]["payload"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queue", "add", "--name", "emails", "letters"], "unexpected extra argument"),
        (["queue", "add", "emails", "letters"], "unexpected extra argument"),
        (["queue", "add"], "Missing option"),
        (["queue", "add", "no such name!"], "is not a valid queue name"),
    ],
)
def test_one_name_that_is_one_is_wanted(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, [*words, "--db", str(tmp_path / "q.db")])
    assert done.exit_code == 2
    assert said in done.output
