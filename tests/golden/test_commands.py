"""The help of every command, and that each answer in JSON has a golden file."""

import inspect
import textwrap
import typing
from pathlib import Path
from types import NoneType

import pytest
import typer

from secagg.cli.app import command_line

# Laid out here, since the layout of the library changes with its releases.
WIDTH = 88
ANSWERS = sorted(path.stem for path in Path(__file__).with_name("json").iterdir())


def commands(command, words=("secagg",)):
    """Yield every command and subcommand with the words that call it."""
    yield words, command
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from commands(each, (*words, name))


def kind_of(parameter, hints):
    """Return what a user types for a parameter: its metavar, or the type's name."""
    if parameter.metavar:
        return parameter.metavar
    hint = hints.get(parameter.name)
    kinds = [each for each in typing.get_args(hint) or (hint,) if each is not NoneType]
    if kinds == [bool]:
        return ""
    return "|".join(getattr(each, "__name__", str(each)) for each in kinds)


def help_of(words, command):
    """Return one command as lines of a fixed width."""
    callback = inspect.unwrap(command.callback) if command.callback else None
    hints = typing.get_type_hints(callback) if callback else {}
    lines = [" ".join(words), "=" * len(" ".join(words))]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines += [*textwrap.wrap(paragraph, WIDTH), ""]
    for parameter in command.params:
        if parameter.hidden:
            continue
        is_option = parameter.opts[0].startswith("-")
        names = [*parameter.opts, *parameter.secondary_opts]
        shown = ", ".join(names) if is_option else parameter.name.upper()
        facts = [kind_of(parameter, hints)]
        facts += ["required"] * parameter.required
        default = parameter.default
        if default not in (None, False, (), []) and not parameter.required:
            facts.append(f"default: {getattr(default, 'value', default)}")
        notes = "; ".join(filter(None, facts))
        lines.append(f"  {shown}" + f"  ({notes})" * bool(notes))
        text = " ".join((getattr(parameter, "help", None) or "").split())
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    for name, each in sorted(getattr(command, "commands", {}).items()):
        first = inspect.cleandoc(each.help or "").split("\n\n")[0]
        lines.append(f"  {name}: {' '.join(first.split())}")
    return "\n".join(lines).rstrip() + "\n"


ALL = list(commands(typer.main.get_command(command_line())))
WITH_JSON = [
    words[1:]
    for words, command in ALL
    if any("--json" in each.opts for each in command.params)
]


def test_help(golden):
    golden("help.txt", "\n\n".join(help_of(*each) for each in ALL))


@pytest.mark.parametrize("words", WITH_JSON, ids=" ".join)
def test_every_command_with_json_has_a_golden_answer(words):
    """Commands that change something print what the running aggregator answers."""
    *group, verb = words
    operation = f"admin-{group[0].removesuffix('s')}.{verb}" if group else ""
    names = {"-".join(words), verb, f"admin-{verb}", operation} - {""}
    assert any(
        name == answer or answer.startswith(f"{name}-")
        for name in names
        for answer in ANSWERS
    )
