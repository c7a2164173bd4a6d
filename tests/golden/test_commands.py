"""The help of every command: what it does, its arguments and its options."""

import inspect
import textwrap
import typing

import typer

from secagg.cli.app import app

# Laid out here, since the library's layout changes from one of its releases to the next.
WIDTH = 88


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
    kinds = [
        each for each in typing.get_args(hint) or (hint,) if each is not type(None)
    ]
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


def test_help(golden):
    root = typer.main.get_command(app)
    golden("help.txt", "\n\n".join(help_of(*each) for each in commands(root)))
