"""Every command that the controller or the mirror tells people to type is one: it parses in the CLI as it
stands."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

import llmgw_controller
import llmgw_mirror
from llmgw_controller.cli.main import ctl

PACKAGE = Path(llmgw_controller.__file__).parent
MIRROR = Path(llmgw_mirror.__file__).parent

#: From the program's name to the end of the text or of this one of several.
COMMAND = re.compile(r"llmgwctl ([a-z][^·;(|]*)")


def filled_in(value: ast.AST) -> str:
    """A name; of what the mirror's commands make of a version, one of its names."""
    call = value.value if isinstance(value, ast.FormattedValue) else None
    name = call.func if isinstance(call, ast.Call) else None
    return "name@name" if isinstance(name, ast.Name) and name.id == "typed" else "name"


def texts(tree: ast.AST):
    """Every string that is not a docstring; what is filled in at run time stands as a name."""
    docs, parts = set(), set()
    for found in ast.walk(tree):
        if isinstance(found, ast.Expr):
            docs.add(found.value)
        if isinstance(found, ast.JoinedStr):
            parts.update(found.values)
            yield "".join(v.value if isinstance(v, ast.Constant) else filled_in(v) for v in found.values)  # type: ignore[misc]
    for found in ast.walk(tree):
        if isinstance(found, ast.Constant) and isinstance(found.value, str) and found not in docs | parts:
            yield found.value


def named(folder: Path) -> list[str]:
    return sorted(
        {
            command.strip()
            for file in folder.rglob("*.py")
            for text in texts(ast.parse(file.read_text(encoding="utf-8")))
            for command in COMMAND.findall(text)
            # What `version` prints is the program's own.
            if command != "name"
        }
    )


def parses(words: list[str]) -> None:
    """As click itself resolves it, short of running it. Raises click's errors."""
    # The group's own flags may stand behind the command.
    words = [word for word in words if word not in ("--watch", "--ascii")]
    command: click.Command = ctl
    context = click.Context(ctl, info_name="llmgwctl")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, words)


@pytest.mark.parametrize("command", sorted({*named(PACKAGE), *named(MIRROR)}))
def test_a_command_that_is_named_can_be_typed(command):
    parses(shlex.split(command))


def test_the_look_finds_what_the_core_names():
    assert {
        "why name",
        "replica drain name",
        "replica stop name",
        "node uncordon name",
        "model activate name",
        "model remove name",
    } <= set(named(PACKAGE / "core"))
    assert {"mirror downloads", "mirror versions"} <= set(named(MIRROR))


@pytest.mark.parametrize("command", ["replica drain m/1 --until big", "node free n1", "replica drain"])
def test_what_cannot_be_typed_is_seen(command):
    with pytest.raises(click.ClickException):
        parses(shlex.split(command))


def test_a_fix_with_several_replicas_can_be_typed():
    parses(shlex.split("replica drain m/1 n/2"))
