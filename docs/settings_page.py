"""Write the reference of all settings from their classes.

    python docs/settings_page.py

writes docs/settings.md.  `tests/architecture/test_settings_page.py` demands that the
page is current.
"""

import dataclasses
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from secagg.config import ClientSettings, ServerSettings
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    SharingClientSettings,
)
from secagg.integrations.flower.terms import NodeSettings

PAGE: Final = Path(__file__).with_name("settings.md")
_PROGRAMS: Final = (
    (
        "Server",
        "`secagg server`. A file for `secagg tasks add` has the sections of a task.",
        ServerSettings,
    ),
    ("Client", "`secagg client`.", ClientSettings),
    ("Leader", "`secagg two-aggregators leader`.", LeaderSettings),
    ("Helper", "`secagg two-aggregators helper`.", HelperSettings),
    ("Client of two", "`secagg two-aggregators client`.", SharingClientSettings),
    (
        "Flower node",
        "The file of [a node of Flower](flower.md#the-file-of-a-node).",
        NodeSettings,
    ),
)
_HEAD: Final = """# Settings

You look up every key of a settings file: its type, default, range and meaning.
Made from the settings classes by `python docs/settings_page.py`.

* A value comes from its default, the file, a variable such as `SECAGG_TASK_STEPS`,
  or `--set task.steps=5`; later ones win.
* A relative path in a file is relative to that file. Unknown keys are errors.
* `--show-settings` prints the values in force and where each came from.
* *required* means that there is no default. *none* means that the setting is off.
* Sample files: [`deploy/config`](../deploy/config).
* Two aggregators: [how to set them up](two-aggregators.md).
"""
_GROUPED: Final = 1e4
_SCIENTIFIC: Final = 1e15
_NAMES: Final = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
}


def settings_page() -> str:
    """Return the page."""
    parts, shown = [_HEAD], dict[type, str]()
    for title, about, kind in _PROGRAMS:
        parts.append(f"## {title}\n\n{about}\n")
        hints = get_type_hints(kind)
        for section in dataclasses.fields(kind):
            part = hints[section.name]
            heading = f"### {title}: [{section.name}]\n"
            if part in shown:
                parts.append(f"{heading}\nAs {shown[part]}.\n")
                continue
            shown[part] = f"`[{section.name}]` under {title}"
            parts.append("\n".join([heading, *_table(part)]) + "\n")
    return "\n".join(parts)


def _table(section: type) -> Iterator[str]:
    yield "| Key | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    hints = get_type_hints(section)
    for field in dataclasses.fields(section):
        cells = (
            f"`{field.name}`",
            _type(hints[field.name], field),
            _default(field),
            field.metadata["doc"],
        )
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        yield f"| {row} |"


def _type(kind: Any, field: dataclasses.Field[Any]) -> str:  # noqa: ANN401 - a type hint
    """Say what a value has to be: type, choices or range, unit."""
    if get_origin(kind) in {Union, types.UnionType}:
        kind = next(each for each in get_args(kind) if each is not type(None))
    is_list = get_origin(kind) is tuple
    name = _NAMES.get(get_args(kind)[0] if is_list else kind, "text")
    if choices := field.metadata["choices"]:
        name = ", ".join(f"`{choice}`" for choice in choices if choice)
    if is_list:
        name = f"list of {name}"
    low, high = field.metadata["low"], field.metadata["high"]
    if low is not None and high is not None:
        name += f", {_number(low)} to {_number(high)}"
    elif low is not None:
        name += f", at least {_number(low)}"
    elif high is not None:
        name += f", at most {_number(high)}"
    unit = field.metadata["unit"]
    return f"{name} ({unit})" if unit else name


def _number(value: float) -> str:
    """Write a bound: digits in groups of three, no fraction of zero."""
    if not _GROUPED <= abs(value) < _SCIENTIFIC:
        return f"{value:g}"
    return f"{value:,.0f}".replace(",", " ")


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
