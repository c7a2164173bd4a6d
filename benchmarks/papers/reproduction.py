"""One reproduction of a published figure: its table, its picture, and its command.

* Every script offers `reproduce(options)`, which computes, and `main`, which writes
  `<name>.json` and `<name>.png` and prints what was found.
* A table states the settings that the publication gives apart from those that were
  assumed because it does not.
* A script lists its settings with their usual values. `--help` prints the list,
  `--set` puts the caller's own numbers in their place, and table and picture say so.
* All randomness is fixed from run to run: experiments expand fixed seeds. The noise of
  a deployment never comes from here.

It depends on no mechanism.
"""

import argparse
import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import figure
from figure import Figure

from dpnoise.errors import DPNoiseError


class MissingDataError(RuntimeError):
    """Data are not on this machine; the text says how to get them."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What a setting is unless the caller says otherwise.

    Args:
        values: Those of the publication's figure. Where all are integers, the caller's
            must be whole numbers too.
        tiny: Those that only prove that the script runs; None for the same.
        one: Whether the setting is one number.
    """

    values: Sequence[float]
    tiny: Sequence[float] | None = None
    one: bool = False

    def read(self, text: str) -> tuple[float, ...]:
        """Read the caller's values.

        Args:
            text: Numbers, separated by commas.

        Raises:
            ValueError: They are no numbers, not whole, not one, or not above 0 where
                all usual ones are.
        """
        values = tuple(float(value) for value in text.split(","))
        if not all(map(math.isfinite, values)):
            raise ValueError("every number must be finite")
        if min(self.values) > 0 >= min(values):
            raise ValueError("every number must be above 0")
        if self.one and len(values) > 1:
            raise ValueError("it is one number")
        if all(isinstance(value, int) for value in self.values):
            if not all(value.is_integer() for value in values):
                raise ValueError("they are whole numbers")
            return tuple(int(value) for value in values)
        return values


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for.

    Args:
        settings: What the script lets a caller set.
        tiny: Shrink everything, only to prove that the script runs.
        allow_invalid_theorem: Also show formulas where their theorem does not apply.
        own: Values of the caller by name.
    """

    settings: Mapping[str, Usual] = field(default_factory=dict)
    tiny: bool = False
    allow_invalid_theorem: bool = False
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return the caller's values of a setting, or the usual ones.

        Args:
            name: As in `--set name=1,2,3`.
        """
        usual = self.settings[name]
        if name in self.own:
            return self.own[name]
        if self.tiny and usual.tiny is not None:
            return tuple(usual.tiny)
        return tuple(usual.values)

    def number(self, name: str) -> float:
        """Return the one value of a setting.

        Args:
            name: As in `--set name=1`.
        """
        (value,) = self.numbers(name)
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Return whole numbers.

        Args:
            name: As in `--set name=1,2,3`.
        """
        return tuple(int(value) for value in self.numbers(name))

    def count(self, name: str) -> int:
        """Return one whole number.

        Args:
            name: As in `--set name=1`.
        """
        return int(self.number(name))


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What a script computed.

    Args:
        name: File name without suffix.
        stated: Settings that the publication states.
        assumed: Settings that it does not state, with the value used here.
        rows: The table; values are JSON values.
        findings: Sentences with the numbers that matter.
        figure: The picture.
    """

    name: str
    stated: Mapping[str, object]
    assumed: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]
    findings: Sequence[str]
    figure: Figure


def run(
    reproduce: Callable[[Options], Reproduction],
    description: str | None,
    settings: Mapping[str, Usual],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a script's command line.

    Args:
        reproduce: The computation.
        description: What `--help` says.
        settings: What a caller may set, by name.
        arguments: Command-line arguments, None for those of the process.

    Returns:
        Exit code: 0, or 2 if pictures cannot be drawn here, data are missing, or a
        setting is unknown or invalid.
    """
    usual = [f"  {name}={_listed(each.values)}" for name, each in settings.items()]
    parser = argparse.ArgumentParser(
        description=description,
        epilog="\n".join(["settings, with their usual values:", *usual]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/papers"), help="directory to write to"
    )
    parser.add_argument("--tiny", action="store_true", help="only prove that it runs")
    parser.add_argument("--table-only", action="store_true", help="draw no picture")
    parser.add_argument(
        "--allow-invalid-theorem",
        action="store_true",
        help="also show formulas where their theorem does not apply, as broken lines",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBERS",
        help="your own values for a setting of the script, separated by commas",
    )
    options = parser.parse_args(arguments)
    try:
        own = dict(_setting(text, settings) for text in options.set)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        if not options.table_only:
            figure.require()
    except figure.MissingPlotLibraryError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        made = reproduce(
            Options(settings, options.tiny, options.allow_invalid_theorem, own)
        )
    except MissingDataError as error:
        print(error, file=sys.stderr)
        return 2
    except DPNoiseError as error:
        print(f"these numbers cannot be computed: {error}", file=sys.stderr)
        return 2
    if own:
        made = _marked(made, own)
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / f"{made.name}.json"
    table.write_text(_as_json(made), encoding="utf-8")
    written = [str(table)]
    if not options.table_only:
        picture = options.out / f"{made.name}.png"
        # Imported here: a table needs none of it, and it takes half a second.
        importlib.import_module("drawing").write_png(made.figure, picture)
        written.append(str(picture))
    for sentence in made.findings:
        print(f"{made.name}: {sentence}")
    print(f"{made.name}: {len(made.rows)} rows, wrote {' and '.join(written)}")
    return 0


def _setting(text: str, settings: Mapping[str, Usual]) -> tuple[str, tuple[float, ...]]:
    """Read one `--set`; the error says what was wrong with it."""
    name, _, values = text.partition("=")
    if name not in settings:
        known = ", ".join(settings)
        raise ValueError(f"there is no setting {name!r}; it has {known}")
    try:
        return name, settings[name].read(values)
    except ValueError as error:
        raise ValueError(
            f"--set {text}: {error}; it takes NAME=NUMBERS, such as "
            f"{name}={_listed(settings[name].values)}"
        ) from error


def _marked(made: Reproduction, own: Mapping[str, tuple[float, ...]]) -> Reproduction:
    """Say in table and picture which numbers are the caller's own."""
    said = "; ".join(f"{name} = {_listed(values)}" for name, values in own.items())
    return dataclasses.replace(
        made,
        assumed={**made.assumed, "set by the caller, whatever stands above": said},
        figure=dataclasses.replace(made.figure, title=f"{made.figure.title}\n{said}"),
    )


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:.12g}" for value in values)


def _as_json(made: Reproduction) -> str:
    """One row per line, so that a change of one number is a change of one line."""
    head = json.dumps(
        {
            "name": made.name,
            "stated": made.stated,
            "assumed": made.assumed,
            "findings": list(made.findings),
        },
        indent=1,
        ensure_ascii=False,
    )
    rows = ",\n  ".join(
        json.dumps({key: _value(value) for key, value in row.items()})
        for row in made.rows
    )
    return f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'


def _value(value: object) -> object:
    """Round floats to six digits; JSON knows neither infinity nor NaN."""
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.6g}") if math.isfinite(value) else "inf"
    return value
