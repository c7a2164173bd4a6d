"""A picture of curves in panels, as values, and one way to draw it.

* A figure is data. Scripts fill it, `drawing` turns it into a PNG, and nothing in
  it depends on the library that draws.
* A mechanism has the same colour and the same marker in every figure.
* A broken line means that no theorem covers what is shown. An open circle was
  measured by running the mechanism; lines are computed.
* matplotlib is optional. Without it the error says how to get it, before any work.

It computes nothing.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

# Colours that stay apart for colour-blind readers, after M. Okabe and K. Ito.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_BLUE, _VERMILION, _PURPLE, _GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"

COLOURS: Final = MappingProxyType(
    {
        "gaussian": _BLACK,
        "ours": _BLUE,
        "ours-rdp": _SKY,
        "skellam": _ORANGE,
        "skellam-ours": _GREEN,
        "ddgauss": _VERMILION,
        "smm": _PURPLE,
        "other": _GREY,
    }
)
"""Colour of each family of curves."""


class MissingPlotLibraryError(RuntimeError):
    """matplotlib is not installed; install the extra, or ask for the table only."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line, or one set of marks.

    Args:
        label: What the legend says; curves with one label share one entry.
        family: Key of `COLOURS`.
        x: Abscissae.
        y: Ordinates; NaN where there is no value.
        marks_only: Whether these are measurements, drawn as open circles.
        broken: Whether no theorem covers the curve.
        spread: Half width of a confidence interval at each point, or empty.
        style: A matplotlib line style for curves of one family.
        wide: Whether to draw a wide pale line, for a curve that others would hide.
    """

    label: str
    family: str
    x: Sequence[float]
    y: Sequence[float]
    marks_only: bool = False
    broken: bool = False
    spread: Sequence[float] = ()
    style: str = "-"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Args:
        title: Setting of this panel.
        curves: What to draw.
        x_label: Name and unit of the abscissa.
        y_label: Name and unit of the ordinate.
        log_x: Whether the abscissa is logarithmic.
        log_y: Whether the ordinate is logarithmic.
        y_limits: Lowest and highest ordinate, or None.
        x_ticks: Where to label the abscissa, or empty.
        note: A remark inside the panel.
        top_label: Name of a second axis above the panel, or empty.
        top_ticks: What that axis says at each of `x_ticks`.
    """

    title: str
    curves: Sequence[Curve]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = True
    y_limits: tuple[float, float] | None = None
    x_ticks: Sequence[float] = ()
    note: str = ""
    top_label: str = ""
    top_ticks: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels in reading order.

    Args:
        title: What the picture shows.
        panels: The panels.
        columns: Panels side by side.
        zoom: How much larger than usual a panel is.
    """

    title: str
    panels: Sequence[Panel]
    columns: int
    zoom: float = 1.0


def require() -> None:
    """Check that pictures can be drawn.

    Raises:
        MissingPlotLibraryError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPlotLibraryError(
            "pictures need matplotlib, which is not installed; run "
            "pip install matplotlib, or pass --table-only"
        )
