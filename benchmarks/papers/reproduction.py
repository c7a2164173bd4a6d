"""One reproduction of a published figure: its table, its picture, and its command.

* Every script offers `reproduce(options)`, which computes, and `main`, which writes
  `<name>.json` and `<name>.png` and prints what was found.
* A table states the settings that the publication gives apart from those that were
  assumed because it does not.
* Nothing here is random from run to run: experiments expand fixed seeds. The noise
  of a deployment never comes from here.

It knows no mechanism.
"""

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import figure
from figure import Figure

__all__ = ["Options", "Reproduction", "run"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for.

    Args:
        tiny: Shrink everything, only to prove that the script runs.
        allow_invalid_theorem: Also show formulas where their theorem does not apply.
        own: Settings of the caller by name; see `numbers`.
        known: Names of the settings that the script has asked for.
    """

    tiny: bool = False
    allow_invalid_theorem: bool = False
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set, compare=False)

    def numbers(self, name: str, usual: Sequence[float]) -> tuple[float, ...]:
        """Return the caller's values of a setting, or the usual ones.

        Args:
            name: As in `--set name=1,2,3`.
            usual: What the figure of the publication takes.
        """
        self.known.add(name)
        return self.own.get(name, tuple(usual))


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
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a script's command line.

    Args:
        reproduce: The computation.
        description: What `--help` says.
        arguments: Command-line arguments, None for those of the process.

    Returns:
        Exit code: 0, or 2 if pictures cannot be drawn here, or a setting is none.
    """
    parser = argparse.ArgumentParser(description=description)
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
        own = dict(_setting(text) for text in options.set)
    except ValueError:
        print("--set takes NAME=NUMBERS, such as epsilons=1,2,4", file=sys.stderr)
        return 2
    try:
        if not options.table_only:
            figure.require()
    except figure.MissingPlotLibraryError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = Options(options.tiny, options.allow_invalid_theorem, own)
    made = reproduce(chosen)
    if unknown := own.keys() - chosen.known:
        print(
            f"{made.name} has no setting {', '.join(sorted(unknown))}; it has "
            f"{', '.join(sorted(chosen.known)) or 'none'}",
            file=sys.stderr,
        )
        return 2
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


def _setting(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    return name, tuple(float(value) for value in values.split(","))


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
