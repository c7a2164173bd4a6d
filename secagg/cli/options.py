"""Options that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ConfigOption", "JSONOption", "SetOption", "ShowSettingsOption"]

JSONOption = Annotated[
    bool,
    typer.Option(
        "--json",
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
