"""The command line as a whole: its verbs, and how their failures end.

Rule 1: every verb is one module of this package with one function; heavy libraries
        are imported inside that function, so that ``--help`` stays instant.
Rule 2: an error of `secagg.errors` ends the process with its own exit code and a next
        step; a mistake on the command line ends it with 2; nothing prints a traceback
        except a fault of secagg.
Rule 3: tracebacks never show local variables: they may hold secrets.
"""

import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Final, cast

import typer

from secagg.cli.failures import EXIT_OK, EXIT_UNREAD, EXIT_USAGE, discard, exit_code_of
from secagg.cli.output import Output
from secagg.errors import ErrorCode, SecAggError

_HELP_NAMES: Final = ["-h", "--help"]

# How typer and click report an unknown name, with or without a suggestion.
_UNKNOWN_NAME: Final = re.compile(
    r"(?P<what>No such (?P<kind>command|option):? '?(?P<name>[^\s']+?)'?)[.:]?"
    r"(?:\s.*)?$",
    re.DOTALL,
)
# Below that, a similar name is more often the opposite of what is meant.
_CLOSE: Final = 0.75
# No option takes larger integers, and doubles represent all below it.
_MOST: Final = 1 << 53
_SYNONYMS: Final = {"remove": "stop", "rm": "stop", "delete": "stop", "ls": "list"}


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer's callback protocol
    """Print the version of this program and end it."""
    if value:
        # Imported here: it loads the parsers of electronic mail.
        from importlib import metadata

        typer.echo(metadata.version("secagg"))
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and stop.",
        ),
    ] = False,
) -> None:
    """Private sums: add up vectors of many clients and learn only the noisy sum."""


_RUN: Final = "Run"
_OPERATE: Final = "Operate"
_SET_UP: Final = "Set up"
_STUDY: Final = "Study"
# In the order of the help: a verb, its module, its function or group there, its panel.
_VERBS: Final = (
    ("server", "server", "server", _RUN),
    ("client", "client", "client", _RUN),
    ("two-aggregators", "two_aggregators", "app", _RUN),
    ("demo", "demo", "demo", _RUN),
    # Stands for the verbs of the table of operations.
    ("", "operator", "operator_commands", _OPERATE),
    ("state", "state", "app", _OPERATE),
    ("pki", "pki", "app", _SET_UP),
    ("enrol", "enrolment", "app", _SET_UP),
    ("doctor", "checks.doctor", "doctor", _SET_UP),
    ("plan", "plan", "plan", _STUDY),
    ("graph", "graph", "graph", _STUDY),
    ("simulate", "simulate", "simulate", _STUDY),
    ("conformance", "conformance", "app", _STUDY),
    ("load", "load", "load", _STUDY),
)


def command_line(verb: str | None = None) -> typer.Typer:
    """Return the command line.

    Args:
        verb: The one whose module is loaded, "" for those of the table of operations;
            None for all of them, as for the help.
    """
    app = typer.Typer(
        name="secagg",
        help="Private sums: add up vectors of many clients and learn only the noisy "
        "sum.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP_NAMES},
    )
    app.callback()(_options)
    for name, module, attribute, panel in _VERBS:
        if verb in (None, name):
            found = getattr(importlib.import_module(f"secagg.cli.{module}"), attribute)
            for word, each in ({name: found} if name else found()).items():
                if isinstance(each, typer.Typer):
                    app.add_typer(each, name=word, rich_help_panel=panel)
                else:
                    app.command(word, rich_help_panel=panel)(each)
    return app


# The root of all usage errors lives in another package from one typer release to the
# next; this subclass of it is public in all of them.
_ClickError = cast("type[Exception]", typer.BadParameter.__mro__[2])

# What some releases of typer return for KeyboardInterrupt; others raise Abort.
_TYPERS_INTERRUPT: Final = 130


def run(words: list[str], *, was_stopped: Callable[[], bool]) -> int:
    """Run one command.

    Args:
        words: What follows ``secagg``.
        was_stopped: Whether a signal asked the command to stop; errors after that
            are its consequence, not a fault.

    Returns:
        The exit code, see `secagg.cli.failures`.

    Raises:
        KeyboardInterrupt: A signal stopped the command.
    """
    _open_streams()
    output = Output(as_json="--json" in words)
    try:
        code = _command(_loaded_for(words))(
            args=words, prog_name="secagg", standalone_mode=False
        )
    except KeyboardInterrupt:
        raise
    except SystemExit:
        # typer and rich raise it for a pipe without a reader; nothing else does here.
        return _exit_on_closed_pipe()
    except Exception as error:  # noqa: BLE001 - the outermost frame of the process
        if was_stopped() or isinstance(error, typer.Abort):
            raise KeyboardInterrupt from None
        return _report_outcome(error, output, words)
    except BaseException:  # noqa: BLE001 - asyncio's CancelledError, alone or in a group
        raise KeyboardInterrupt from None
    if code == _TYPERS_INTERRUPT:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else EXIT_OK


def _loaded_for(words: list[str]) -> str | None:
    """Return the verb whose module a command line needs; None for all of them."""
    verb = words[0] if words else ""
    if verb in {row[0] for row in _VERBS if row[0]}:
        return verb
    from secagg.server.admin.operations import OPERATIONS

    known = {each.words[0] for each in OPERATIONS.values()}
    return "" if verb in known else None


@functools.cache
def _command(verb: str | None) -> Any:  # noqa: ANN401 - a class that moves between typer's releases
    """Return the tree of commands: flags without a type, paragraphs without breaks."""
    root = typer.main.get_command(command_line(verb))
    pending: list[Any] = [root]
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        # The terminal's width breaks lines, and typer would keep those of the source.
        paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        # Without parsing a line: that would build the types of all options.
        context = command.context_class(
            command, info_name=command.name, help_option_names=_HELP_NAMES
        )
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):
                # Newer releases of typer print <bool> after every flag.
                option.display_type_rich = lambda **_: None
    return root


def _report_outcome(error: Exception, output: Output, words: list[str]) -> int:
    """Print the outcome of the command, and return its exit code."""
    if isinstance(error, SecAggError):
        output.error(error)
        return exit_code_of(error)
    if isinstance(error, _ClickError):
        return _usage_error(error, output, words)
    if isinstance(error, BrokenPipeError):
        return _exit_on_closed_pipe()
    if isinstance(error, OSError) and (refusal := _refusal_of_output()) is not None:
        discard(sys.stdout)
        output.error(refusal)
        return exit_code_of(refusal)
    with suppress(OSError):  # no stream is left for the report
        traceback.print_exception(error)
    output.failure(
        f"internal error: {type(error).__name__}",
        next_step="This is a fault of secagg. Please report it with the lines above.",
        code=int(ErrorCode.INTERNAL),
        name=ErrorCode.INTERNAL.name,
        exit_code=exit_code_of(ErrorCode.INTERNAL),
    )
    return exit_code_of(ErrorCode.INTERNAL)


def _open_streams() -> None:
    """Open the streams that a command was started without; their output is lost."""
    for name in ("stdin", "stdout", "stderr"):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the whole process


def _refusal_of_output() -> SecAggError | None:
    """Return why standard output cannot be written, or None if it can."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        return ErrorCode.STORAGE_FAILED.error(
            f"standard output cannot be written: {error.strerror}",
            fix="Make room where it goes, or send it elsewhere.",
        )
    return None


def _exit_on_closed_pipe() -> int:
    """End as every tool does whose reader has closed the pipe."""
    discard(sys.stdout)
    return EXIT_UNREAD


def _with_close_names(message: str, command: object) -> str:
    """Replace a library's suggestion by names that are close.

    Args:
        message: Of the library.
        command: The command that the message is about.
    """
    found = _UNKNOWN_NAME.match(message)
    if found is None:
        return message
    given = found["name"]
    if found["kind"] == "command":
        known = [*getattr(command, "commands", ())]
        meant = [_SYNONYMS[given]] if _SYNONYMS.get(given) in known else []
    else:
        known = [name for each in getattr(command, "params", ()) for name in each.opts]
        meant = []
    meant += difflib.get_close_matches(given, known, n=1, cutoff=_CLOSE)
    hint = f" Did you mean {meant[0]}?" if meant else ""
    return f"{found['what']}.{hint}"


def _plain_integer(error: BaseException, words: list[str]) -> str:
    """Return how an integer is written that was given as 1e6, or "".

    Args:
        error: An error of the library.
        words: The command line.
    """
    names = getattr(getattr(error, "param", None), "opts", ())
    for place, word in enumerate(words):
        name, mark, text = word.partition("=")
        if name not in names:
            continue
        text = text if mark else "".join(words[place + 1 : place + 2])
        with suppress(ValueError):  # it is not a number at all
            number = float(text)
            if number.is_integer() and abs(number) < _MOST and not text.isdigit():
                return f"Write {name} {int(number)}"
    return ""


def _usage_error(error: BaseException, output: Output, words: list[str]) -> int:
    """Print a mistake on the command line, with the closest known names."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "secagg"
    format_message = getattr(error, "format_message", None)
    message = format_message() if callable(format_message) else str(error)
    if not message:
        # `secagg` without a verb: its help has been printed.
        return EXIT_USAGE
    message = _with_close_names(message, getattr(context, "command", None))
    plain = _plain_integer(error, words)
    output.failure(
        message,
        next_step=plain or f"See {command} --help",
        name="USAGE",
        exit_code=EXIT_USAGE,
    )
    return EXIT_USAGE
