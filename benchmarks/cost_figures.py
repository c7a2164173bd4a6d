"""Draws what `make bench` has measured: costs against cohorts, vectors and by round.

``python cost_figures.py build/benchmarks.jsonl docs/pictures``

* Only the lines of the benchmarks are drawn. A figure whose lines are missing is
  skipped.
* The same lines give the same bytes: no date, no random names in the files.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Sheet

# Colours that colour-blind readers can distinguish, after M. Okabe and K. Ito.
_COLOURS: Final = {
    "client": "#0072B2",
    "clients": "#0072B2",
    "server": "#D55E00",
    "up": "#009E73",
    "down": "#CC79A7",
    "ours": "#0072B2",
    "Flower": "#777777",
}
_SAID: Final = {
    "client": "one client, ms",
    "server": "the server, whole session, ms",
    "up": "sent by one client, bytes",
    "down": "sent to one client, bytes",
}
_ROUNDS: Final = ("advertise_keys", "share_keys", "masked_input", "unmasking")

_Line = dict[str, Any]


def main() -> int:
    """Draw all figures whose lines exist."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    mpl.rcParams["svg.hashsalt"] = "secagg"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small files
    for name, sheet in (
        ("cost_by_clients", _growth(lines, "clients", "clients in the session")),
        ("cost_by_entries", _growth(lines, "dimension", "entries of a vector")),
        ("cost_by_round", _rounds(lines)),
        ("cost_beside_flower", _flower(lines)),
    ):
        if sheet is not None:
            FigureCanvasSVG(sheet)
            sheet.savefig(target / f"{name}.svg", format="svg", metadata={"Date": None})
            print(target / f"{name}.svg", file=sys.stderr)
    return 0


def _growth(lines: Iterable[_Line], by: str, label: str) -> Sheet | None:
    series = "growth with " + {"clients": "clients", "dimension": "entries"}[by]
    found = [line for line in lines if line["name"].startswith(series + "/")]
    if not found:
        return None
    sheet = Sheet(figsize=(8, 3.6), layout="constrained")
    for index, whats in enumerate((("client", "server"), ("up", "down"))):
        axes = sheet.add_subplot(1, 2, index + 1)
        for what in whats:
            own = [line for line in found if line["name"] == f"{series}/{what}"]
            axes.plot(
                [line["parameters"][by] for line in own],
                [line["value"] for line in own],
                marker="o",
                color=_COLOURS[what],
                label=_SAID[what],
            )
        axes.set(
            xscale="log", yscale="log", xlabel=label, ylabel=("CPU", "bytes")[index]
        )
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    sheet.suptitle(_setting(found[0], without=by), fontsize=10)
    return sheet


def _rounds(lines: Iterable[_Line]) -> Sheet | None:
    found = {
        line["name"].removeprefix("round "): line
        for line in lines
        if line["name"].startswith("round ")
    }
    if not found:
        return None
    sheet = Sheet(figsize=(8, 3.6), layout="constrained")
    panels = (
        ("CPU, ms, all clients and the server", ("clients", "server")),
        ("bytes, all clients together", ("up", "down")),
    )
    for index, (title, whats) in enumerate(panels):
        axes = sheet.add_subplot(1, 2, index + 1)
        for offset, what in enumerate(whats):
            values = [found[f"{name}/{what}"]["value"] for name in _ROUNDS]
            bars = axes.barh(
                [place + 0.4 * offset for place in range(len(_ROUNDS))],
                values,
                height=0.38,
                color=_COLOURS[what],
                label=what,
            )
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2)
        axes.set_yticks(
            [place + 0.2 for place in range(len(_ROUNDS))],
            [name.replace("_", " ") for name in _ROUNDS],
        )
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.margins(x=0.25)
        axes.set_xticks([])
        axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0))
    sheet.suptitle(_setting(next(iter(found.values()))), fontsize=10)
    return sheet


def _flower(lines: Iterable[_Line]) -> Sheet | None:
    found = [line for line in lines if line["name"].startswith("flower/")]
    if not found:
        return None
    sheet = Sheet(figsize=(8, 6), layout="constrained")
    settings = list(dict.fromkeys(_setting(line) for line in found))
    for index, what in enumerate(_SAID):
        axes = sheet.add_subplot(2, 2, index + 1)
        for offset, whose in enumerate(("ours", "Flower")):
            own = [line for line in found if line["name"] == f"flower/{what}, {whose}"]
            places = [settings.index(_setting(line)) + 0.4 * offset for line in own]
            values = [line["value"] for line in own]
            # Marks, not bars: on a logarithmic axis a length has no meaning.
            axes.plot(
                values,
                places,
                "o",
                color=_COLOURS[whose],
                label=whose if whose == "ours" else own[0]["baseline"],
            )
            for value, place in zip(values, places, strict=True):
                axes.annotate(
                    f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
                    (value, place),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
        axes.set_yticks(
            [place + 0.2 for place in range(len(settings))],
            [each.replace(", ring", ",\nring") for each in settings]
            if index % 2 == 0
            else [""] * len(settings),
            fontsize=7,
        )
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.margins(x=0.3, y=0.15)
        axes.grid(visible=True, axis="x", alpha=0.3)
        axes.set_title(f"{what}: {_unit(found, what)}", fontsize=9)
    handles, labels = sheet.axes[0].get_legend_handles_labels()
    sheet.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return sheet


def _unit(lines: Iterable[_Line], what: str) -> str:
    """Return the unit in which something was measured."""
    return next(
        str(line["unit"]) for line in lines if line["name"].startswith(f"flower/{what}")
    )


def _setting(line: _Line, *, without: str = "") -> str:
    """Return the sizes of a line as text, without the one that is an axis."""
    words = {
        "clients": "{:,} clients",
        "dimension": "{:,} entries",
        "degree": "ring of {}",
        "lost": "{} lost",
    }
    return ", ".join(
        words[key].format(value)
        for key, value in line["parameters"].items()
        if key in words and key != without
    )


if __name__ == "__main__":
    sys.exit(main())
