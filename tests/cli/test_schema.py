"""Help and schemas: every command has a group and an example that works, and JSON is what its schema says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.cli._documents import DOCUMENTS, json_schema
from woodlot.cli._examples import EXAMPLES, PANEL_OF

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command and group of commands of Woodlot itself, by its name."""
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_has_an_example_and_a_group() -> None:
    known = dict(commands())
    assert set(EXAMPLES) == set(known)
    assert set(PANEL_OF) == {name for name in known if " " not in name}
    for name, command in known.items():
        assert EXAMPLES[name] in (command.epilog or ""), name
        if " " not in name:
            assert command.rich_help_panel == PANEL_OF[name]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_name_commands_options_and_arguments_that_exist(name: str) -> None:
    words = shlex.split(EXAMPLES[name])
    command, rest = ROOT, words[words.index("woodlot") + 1 :]
    found: list[str] = []
    while rest and rest[0] in getattr(command, "commands", {}):
        found.append(rest[0])
        command, rest = command.commands[rest[0]], rest[1:]
    assert " ".join(found).startswith(name)
    with command.make_context(found[-1], list(rest), resilient_parsing=False):
        pass
    assert {word for word in rest if word.startswith("--")} <= options(command)


def test_the_help_shows_groups_and_the_example() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(panel in shown for panel in set(PANEL_OF.values()))
    assert "Example: woodlot train job.toml --name churn" in " ".join(
        CliRunner().invoke(app, ["train", "--help"]).output.split()
    )


def test_every_command_with_json_has_a_schema() -> None:
    with_json = {name for name, command in commands() if "--json" in options(command)}
    assert with_json - set(DOCUMENTS) == {"card"} & with_json
    assert set(DOCUMENTS) - with_json == {"error"}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_schemas_are_schemas(name: str) -> None:
    schema = json_schema(name)
    assert json.loads(CliRunner().invoke(app, ["schema", *name.split()]).output) == json.loads(json.dumps(schema))
    place = schema["$ref"].removeprefix("#/$defs/")
    assert schema["$defs"][place]["type"] == "object"
    assert schema["title"] == f"woodlot {name} --json"


def test_the_list_and_a_wrong_name() -> None:
    assert CliRunner().invoke(app, ["schema"]).output.split("\n")[:-1] == list(DOCUMENTS)
    wrong = CliRunner().invoke(app, ["schema", "trian"])
    assert wrong.exit_code == 1
    assert "did you mean 'train'" in wrong.output
