"""Options that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from secagg.cli.output import Output
    from secagg.protocol.profiles import Profile


_EXPERIMENTAL: Final = (
    "{} is experimental and unreviewed: its argument is the authors' own, without a "
    "review from outside; do not protect real data with it (docs/choosing-a-graph.md)"
)

JSONOption = Annotated[
    bool,
    typer.Option(
        "--json",
        is_eager=True,  # options that answer at once know it, wherever it stands
        help="Print JSON: the last line of standard output is one object.",
    ),
]

ConfigOption = Annotated[
    Path,
    typer.Option("--config", metavar="FILE", help="Settings file (TOML)."),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one setting; may be repeated.",
    ),
]

ShowSettingsOption = Annotated[
    bool,
    typer.Option(
        "--show-settings",
        help="Check the settings, print each with its origin, and stop.",
    ),
]

ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile",
        help="Named threat model; malicious-server-sparse is experimental and "
        "unreviewed.",
    ),
]


RESTORED_ACKNOWLEDGEMENT: Final = "I accept that this client may answer twice"


def restored_option(why: str) -> Any:  # noqa: ANN401 - what typer makes of an option
    """Return the option by which a client accepts a restored state, in one sentence.

    Args:
        why: Its help, before the sentence.
    """
    return typer.Option(
        "--restored",
        metavar="SENTENCE",
        help=f"{why} The sentence: {RESTORED_ACKNOWLEDGEMENT}",
    )


def accepts_restored(sentence: str | None) -> bool:
    """Return whether the option accepts a restored state, in its sentence."""
    from secagg.errors import ErrorCode, LocalProtocolError

    if sentence is not None and sentence != RESTORED_ACKNOWLEDGEMENT:
        raise ErrorCode.BAD_SETTINGS.error(
            "--restored takes one sentence, and this is another",
            kind=LocalProtocolError,
            fix=f'Write --restored "{RESTORED_ACKNOWLEDGEMENT}" if it is true.',
        )
    return sentence is not None


def named_profile(label: str) -> "Profile":
    """Return the profile that an option names.

    Raises:
        ServiceError: BAD_SETTINGS; it lists the known profiles.
    """
    from secagg.errors import ErrorCode
    from secagg.protocol.profiles import Profile

    try:
        return Profile.from_label(label)
    except ValueError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            str(error), fix="Choose one of the profiles named."
        ) from None


def warn_if_experimental(profile: "Profile", output: "Output") -> None:
    """Print a warning where a profile must not protect real data yet."""
    if profile.is_experimental:
        output.line(_EXPERIMENTAL.format(profile.label), style="bold red")
