"""Drawing figures with matplotlib, small enough to live in a repository.

* Colours, line widths and sizes are decided here and nowhere else.
* The PNG has few colours and no date: equal figures give equal bytes.

It decides nothing about what is shown; `figure` is the data.
"""

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from figure import COLOURS, Curve, Figure, Panel
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D
from PIL import Image

_WIDTH_INCHES: Final = 3.6
_HEIGHT_INCHES: Final = 2.9
_LEGEND_INCHES: Final = 1.1
_ENTRY_INCHES: Final = 2.9  # the longest label at its font size
_DOTS_PER_INCH: Final = 75
_NO_DITHER: Final = Image.Dither.NONE
_PALETTE: Final = 128  # colours in the PNG: enough for lines, half the bytes


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG.

    Args:
        figure: What to draw.
        path: Where to write it; an existing file is replaced.
    """
    rows = math.ceil(len(figure.panels) / figure.columns)
    sheet = Sheet(
        figsize=(
            figure.zoom * _WIDTH_INCHES * figure.columns,
            figure.zoom * _HEIGHT_INCHES * rows + _LEGEND_INCHES,
        ),
        dpi=_DOTS_PER_INCH,
        layout="constrained",
    )
    FigureCanvasAgg(sheet)
    entries: dict[str, Line2D] = {}
    for index, panel in enumerate(figure.panels):
        axes = sheet.add_subplot(rows, figure.columns, index + 1)
        for curve in panel.curves:
            _draw_curve(axes, curve, entries)
        _label(axes, panel)
    sheet.suptitle(figure.title, fontsize=11)
    sheet.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, round(sheet.get_figwidth() / _ENTRY_INCHES)),
        fontsize=8,
        frameon=False,
    )
    _save(sheet, path)


def _draw_curve(axes: Axes, curve: Curve, entries: dict[str, Line2D]) -> None:
    """Draw one curve, and keep one legend entry per label."""
    colour = COLOURS[curve.family]
    if curve.marks_only:
        (line,) = axes.plot(
            curve.x,
            curve.y,
            color=colour,
            linestyle="none",
            marker="o",
            markersize=4.5,
            markerfacecolor="none",
        )
    else:
        (line,) = axes.plot(
            curve.x,
            curve.y,
            color=colour,
            linestyle="--" if curve.broken else curve.style,
            linewidth=5.0 if curve.wide else 1.4,
            alpha=0.4 if curve.wide else 1.0,
        )
    if curve.label not in entries:
        entries[curve.label] = _in_black(line) if curve.marks_only else line
    if curve.spread:
        low = [y - half for y, half in zip(curve.y, curve.spread, strict=True)]
        high = [y + half for y, half in zip(curve.y, curve.spread, strict=True)]
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.2, linewidth=0)


def _label(axes: Axes, panel: Panel) -> None:
    """Set everything about the axes but the curves."""
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    if panel.x_ticks:
        axes.set_xticks(list(panel.x_ticks), _short(panel.x_ticks))
        axes.minorticks_off()
    if panel.top_label:
        above = axes.secondary_xaxis("top")
        above.set_xticks(list(panel.x_ticks), _short(panel.top_ticks))
        above.minorticks_off()
        above.tick_params(labelsize=8)
        above.set_xlabel(panel.top_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.5)
    if panel.note:
        place: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 7}
        axes.text(0.97, 0.95, panel.note, transform=axes.transAxes, **place)


def _short(numbers: Iterable[float]) -> list[str]:
    return [f"{number:g}" for number in numbers]


def _in_black(line: Line2D) -> Line2D:
    """A legend entry for marks of every colour."""
    entry = Line2D([], [])
    entry.update_from(line)
    entry.set_color("#000000")
    return entry


def _save(sheet: Sheet, path: Path) -> None:
    rendered = io.BytesIO()
    sheet.savefig(rendered, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(rendered) as picture:
        few = picture.convert("RGB").quantize(
            colors=_PALETTE, method=Image.Quantize.MAXCOVERAGE, dither=_NO_DITHER
        )
        few.save(path, optimize=True)
