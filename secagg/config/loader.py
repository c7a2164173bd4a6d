"""The loader of all settings: TOML, then `SECAGG_*` variables, then flags.

Rule 1: settings are frozen dataclasses of sections; a section is a frozen dataclass of
        fields made by `setting`.  The classes are the only list of keys.
Rule 2: later sources win: defaults < file < environment < flags.  Every value records
        its source.
Rule 3: an unknown key is an error with a suggestion, in every source.  A misspelt
        privacy limit must not silently fall back to its default.
Rule 4: a relative path in a file, or the default of one, is relative to that file, so
        that a configuration works from every working directory.
Rule 5: secrets are never settings; settings name the files that hold them.

The loader knows no section by name and reads no file but the given one.
"""

import dataclasses
import difflib
import math
import os
import shlex
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from secagg.errors import ErrorCode, SecAggError
from secagg.runtime.files import read_small

_ENVIRONMENT_PREFIX: Final = "SECAGG_"
# Below that, a name that looks alike is seldom the one that was meant.
_CLOSE: Final = 0.6
# A text that begins and ends so was written as TOML, or has lost its quotes to a shell.
# Addresses such as [::1]:7400 only begin so.
_TOML_MARKS: Final = frozenset({('"', '"'), ("'", "'"), ("[", "]"), ("{", "}")})
# A settings file is a page or two; more is the wrong file, for example a key or data.
_MAX_FILE_BYTES: Final = 1 << 20

# Beyond the sign: as TOML's integers, and those of the store.
_INTEGER_BITS: Final = 63

_Settings = TypeVar("_Settings")


class _Text(str):
    """Marks a value of a variable or a flag: these have texts only."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LoadedSettings(Generic[_Settings]):
    """Settings and where each of them came from.

    Attributes:
        settings: The frozen dataclass.
        origins: ``section.key`` -> "default", a file name, a variable or a flag.
    """

    settings: _Settings
    origins: Mapping[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (key, value, origin) for every setting, in order of declaration.

        What a section shares with that of another program comes last.
        """
        rows = []
        for section in dataclasses.fields(self.settings):  # type: ignore[arg-type] # a dataclass
            values = getattr(self.settings, section.name)
            own = type(values).__annotations__
            fields = dataclasses.fields(values)
            for field in sorted(fields, key=lambda field: field.name not in own):
                key = f"{section.name}.{field.name}"
                value = getattr(values, field.name)
                rows.append((key, _value_text(value), self.origins[key]))
        return rows


def setting(  # noqa: PLR0913 - one keyword per rule that a value can break
    doc: str,
    *,
    default: object = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    unit: str = "",
) -> Any:  # noqa: ANN401 - it stands where a value of the field's type does
    """Declare one setting of a section.

    Args:
        doc: One sentence for the reference file.
        default: Value when no source names the key; without it the key is required.
        low: Smallest value that works, inclusive.
        high: Largest value that works, inclusive.
        choices: The only texts that work; of a list, each entry is one.
        unit: What a number counts.

    Returns:
        A dataclass field.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "doc": doc,
            "low": low,
            "high": high,
            "choices": tuple(choices),
            "unit": unit,
        },
    )


def load_settings(  # noqa: PLR0913 - one argument per source
    kind: type[_Settings],
    *,
    path: Path | None,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
    foreign_sections: Iterable[str] = (),
    passed_over: Iterable[str] = (),
) -> LoadedSettings[_Settings]:
    """Collect the settings of one program.

    Args:
        kind: Dataclass whose fields are sections.
        path: TOML file, or None for none.
        environment: The variables of the process; only `SECAGG_*` are read, as
            ``SECAGG_<SECTION>_<KEY>``.
        overrides: Flags of the form ``section.key=value``.
        foreign_sections: Sections of other programs, whose variables are ignored.
        passed_over: Sections of the file that another program reads.

    Returns:
        The settings with their origins.

    Raises:
        ServiceError: BAD_SETTINGS; names the key, its origin, the expected value and
            the given one.  Correct the named source.
    """
    sections = _sections(kind)
    raw: dict[str, tuple[object, str, Path | None]] = {}
    if path is not None:
        document = _document_of(path)
        for name in passed_over:
            document.pop(name, None)
        raw |= _from_document(document, sections, str(path), path.resolve().parent)
    raw |= _from_environment(environment, sections, frozenset(foreign_sections))
    raw |= _from_flags(overrides, sections)
    return _built(kind, sections, raw, path)


def settings_from(
    kind: type[_Settings], document: Mapping[str, object], *, origin: str
) -> LoadedSettings[_Settings]:
    """Build settings from sections that were read already.

    Args:
        kind: Dataclass whose fields are sections.
        document: Sections and their keys; paths are whole.
        origin: Where it comes from, for messages.

    Raises:
        ServiceError: BAD_SETTINGS, as `load_settings`.
    """
    sections = _sections(kind)
    return _built(kind, sections, _from_document(document, sections, origin, None))


def sections_in(path: Path) -> frozenset[str]:
    """Return the names of the sections of a settings file.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return frozenset(_document_of(path))


def _built(
    kind: type[_Settings],
    sections: Mapping[str, type],
    raw: Mapping[str, tuple[object, str, Path | None]],
    path: Path | None = None,
) -> LoadedSettings[_Settings]:
    """Build the sections from raw values, each with its origin."""
    built: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, section in sections.items():
        values: dict[str, Any] = {}
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            key = f"{name}.{field.name}"
            if key in raw:
                value, origin, base = raw[key]
                read, hint = None, hints[field.name]
                # Variables and flags have no other way to say that nothing is set.
                if value != "" or not _unwrap(hint)[2]:
                    read = read_value(
                        value, hint, field.metadata, key=key, origin=origin
                    )
                if isinstance(read, Path) and base is not None:
                    read = base / read
                values[field.name], origins[key] = read, origin
            elif field.default is dataclasses.MISSING:
                raise _settings_error(
                    f"{key} is missing: {field.metadata['doc']}",
                    f"Add it under [{name}]"
                    + (f" in {path}" if path is not None else "")
                    + f", or set {_variable(name, field.name)}.",
                )
            else:
                origins[key] = "default"
                if isinstance(field.default, Path) and path is not None:
                    values[field.name] = path.resolve().parent / field.default
        built[name] = section(**values)
    return LoadedSettings(kind(**built), origins)


# --- sources ------------------------------------------------------------------------


def _document_of(path: Path) -> dict[str, Any]:
    """Read a settings file of TOML."""
    data = read_small(
        path,
        most=_MAX_FILE_BYTES,
        code=ErrorCode.BAD_SETTINGS,
        what="the settings file",
        if_unreadable="Check the path and that this user may read it.",
        if_large="This does not look like a settings file; check the path.",
    )
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise _settings_error(
            f"the settings file {path} is not UTF-8 text",
            "Save it as UTF-8, or check the path.",
        ) from None
    except (ValueError, RecursionError) as error:  # TOML's own error is the first
        raise _settings_error(
            f"the settings file {path} is not valid TOML: {error}",
            "Correct the line that is named; texts need quotation marks in TOML.",
        ) from None


def _from_document(
    document: Mapping[str, object],
    sections: Mapping[str, type],
    origin: str,
    base: Path | None,
) -> dict[str, tuple[object, str, Path | None]]:
    """Return the values of a settings document by key, and refuse unknown keys."""
    found: dict[str, tuple[object, str, Path | None]] = {}
    for name, content in document.items():
        if name not in sections:
            raise _unknown(f"section [{name}]", name, sections, origin)
        if not isinstance(content, dict):
            raise _settings_error(
                f"{name} in {origin} must be a section, not a {_kind_of(content)}",
                f"Write it as [{name}] with keys below it.",
            )
        known = [field.name for field in dataclasses.fields(sections[name])]
        for key, value in content.items():
            if key not in known:
                raise _unknown(f"key {name}.{key}", key, known, origin)
            found[f"{name}.{key}"] = (value, origin, base)
    return found


def _from_environment(
    environment: Mapping[str, str],
    sections: Mapping[str, type],
    foreign: frozenset[str],
) -> dict[str, tuple[object, str, Path | None]]:
    """Return the values of variables by key, and refuse unknown variables."""
    variables = {
        _variable(name, field.name): f"{name}.{field.name}"
        for name, section in sections.items()
        for field in dataclasses.fields(section)
    }
    found: dict[str, tuple[object, str, Path | None]] = {}
    for variable, text in environment.items():
        if not variable.startswith(_ENVIRONMENT_PREFIX):
            continue
        section = variable[len(_ENVIRONMENT_PREFIX) :].split("_", 1)[0].lower()
        if variable in variables:
            found[variables[variable]] = (_Text(text), variable, None)
        elif section not in foreign:
            raise _unknown(
                f"variable {variable}", variable, variables, "the environment"
            )
    return found


def _from_flags(
    overrides: Sequence[str], sections: Mapping[str, type]
) -> dict[str, tuple[object, str, Path | None]]:
    """Return the values of `--set` by key, and refuse unknown keys."""
    known = {
        f"{name}.{field.name}"
        for name, section in sections.items()
        for field in dataclasses.fields(section)
    }
    found: dict[str, tuple[object, str, Path | None]] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals:
            raise _settings_error(
                f"--set needs section.key=value, not {override!r}",
                "For example: --set cohort.min_clients=5",
            )
        if key not in known:
            raise _unknown(f"key {key}", key, known, "--set")
        found[key] = (_Text(text.strip()), "--set", None)
    return found


# --- values -------------------------------------------------------------------------


def read_value(
    value: object, hint: object, rules: Mapping[str, Any], *, key: str, origin: str
) -> object:
    """Return a value as its declared type, within its limits.

    Args:
        value: As TOML or JSON has it, or the text of a variable or a flag.
        hint: The declared type.
        rules: The metadata of its field; see `setting`.
        key: What messages call it.
        origin: Where it comes from, for messages.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    read = _convert(value, hint, key, origin)
    _check_range(read, rules, key, origin)
    return read


def _convert(value: object, hint: object, key: str, origin: str) -> object:
    """Return `value` as the declared type; texts come from variables and flags."""
    wanted, words, _ = _unwrap(hint)
    if value in words:
        return str(value) if isinstance(value, _Text) else value
    if isinstance(value, _Text):
        value = _parse_text(str(value), wanted, key, origin)
    # A bool is an int to Python, but `sessions = true` is a mistake.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, int) and abs(value) >> _INTEGER_BITS:
        raise _settings_error(
            f"{key} must be a number of at most {_INTEGER_BITS} bits (from {origin})",
            f"Give {key} a smaller number.",
        )
    if typing.get_origin(wanted) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif wanted is Path and isinstance(value, str) and value:
        return _path_of(value, key, origin)
    elif wanted is float and is_number:
        return float(typing.cast("float", value))
    wanted = typing.get_origin(wanted) or wanted
    if type(value) is wanted is not tuple:
        return value
    expected = " or ".join(
        [_NAMES.get(wanted, "list of texts"), *(f'"{word}"' for word in words)]
    )
    raise _settings_error(
        f"{key} must be a {expected}, not the {_kind_of(value)} {value!r} "
        f"(from {origin})",
        f"Give {key} a {expected}.",
    )


def _path_of(text: str, key: str, origin: str) -> Path:
    """Return a path that the system can be asked for, ``~`` replaced."""
    with suppress(RuntimeError, ValueError):
        path = Path(text).expanduser()
        if b"\0" not in os.fsencode(path):
            return path
    raise _settings_error(
        f"{key} must be a path of this system, not {text!r} (from {origin})",
        f"Give {key} the path of a file or a directory.",
    )


def _parse_text(text: str, wanted: object, key: str, origin: str) -> object:
    """Return the value of a text; the text itself if it has no other value."""
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if wanted is int or wanted is float:
        try:
            return int(text) if wanted is int else float(text)
        except ValueError:
            return text
    if typing.get_origin(wanted) is tuple:
        return _parse_list(text, key, origin)
    if (text[:1], text[-1:]) in _TOML_MARKS and len(text) > 1:
        bare = text[1:-1].strip()
        raise _settings_error(
            f"{key} must not be written as in a settings file: {text!r} (from "
            f"{origin})",
            f"Write {_spelling_of(key, bare, origin)}",
        )
    return text


def _parse_list(text: str, key: str, origin: str) -> list[str]:
    """Read ``a,b``; TOML's own spelling would make names with brackets in them."""
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    if all(items) and not any(mark in text for mark in "[]{}\"'"):
        return items
    names = [name for item in items if (name := item.strip("[]{}\"' "))]
    raise _settings_error(
        f"{key} is a list, and lists are written a,b here, not {text!r} (from "
        f"{origin})",
        f"Write {_spelling_of(key, ','.join(names), origin)}",
    )


def _spelling_of(key: str, text: str, origin: str) -> str:
    """Return the spelling of `text` for its `origin`; shells keep single quotes."""
    return (
        f"--set {shlex.quote(f'{key}={text}')}"
        if origin == "--set"
        else (f"{origin}={shlex.quote(text)}")
    )


def _check_range(
    value: object, rules: Mapping[str, Any], key: str, origin: str
) -> None:
    """Refuse a value outside of the limits of its setting."""
    unit = f" {rules['unit']}" if rules["unit"] else ""
    if isinstance(value, float) and not math.isfinite(value):
        raise _settings_error(
            f"{key} must be a finite number, not {value} (from {origin})",
            f"Give {key} a number.",
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = rules["low"], rules["high"]
        if low is not None and value < low:
            raise _settings_error(
                f"{key} must be at least {low}{unit}, not {value} (from {origin})",
                f"The nearest value that works is {low}.",
            )
        if high is not None and value > high:
            raise _settings_error(
                f"{key} must be at most {high}{unit}, not {value} (from {origin})",
                f"The nearest value that works is {high}.",
            )
    if rules["choices"]:
        for text in value if isinstance(value, tuple) else (value,):
            if text not in rules["choices"]:
                raise _settings_error(
                    f"{key} must be one of {', '.join(rules['choices'])}, "
                    f"not {text!r} (from {origin})",
                    _suggestion(str(text), rules["choices"]) or "Choose one of these.",
                )


def _unwrap(hint: object) -> tuple[object, tuple[object, ...], bool]:
    """Return the type of a setting, words that stand in for it, and whether none may.

    A hint is a type, perhaps joined with None or with the words, as a `Literal`.
    """
    if typing.get_origin(hint) not in {types.UnionType, typing.Union}:
        return hint, (), False
    wanted, *others = typing.get_args(hint)
    words = [word for other in others for word in typing.get_args(other)]
    return wanted, tuple(words), types.NoneType in others


def _sections(kind: type) -> dict[str, type]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _variable(section: str, key: str) -> str:
    return f"{_ENVIRONMENT_PREFIX}{section.upper()}_{key.upper()}"


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


_NAMES: Final[Mapping[object, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    dict: "section",
    list: "list",
}


def _kind_of(value: object) -> str:
    return _NAMES.get(type(value), type(value).__name__)


# --- complaints ---------------------------------------------------------------------


def _settings_error(message: str, next_step: str) -> SecAggError:
    return ErrorCode.BAD_SETTINGS.error(message, fix=next_step)


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return the key that was probably meant; "" for none."""
    # Of keys with their section, the section alone makes no two names alike.
    names = {each.rpartition(".")[2]: each for each in known}
    close = difflib.get_close_matches(
        name.rpartition(".")[2], list(names), n=1, cutoff=_CLOSE
    )
    return f"Did you mean {names[close[0]]}?" if close else ""


def _unknown(what: str, name: str, known: Iterable[str], origin: str) -> SecAggError:
    """Return the error of an unknown key, with the nearest one."""
    names = sorted(known)
    return _settings_error(
        f"unknown {what} in {origin}",
        _suggestion(name, names) or f"Known here: {', '.join(names)}.",
    )
