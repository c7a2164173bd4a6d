"""A picture of measured curves as values, and as strokes, discs and words on paper.

* A `Sheet` is data. `drawing` places it once, and both `svg_text` and `pdf` write what
  it placed, so that they show the same.
* Ordinates are logarithmic. Discs are measurements, bars their intervals, and the
  broken line at 1 is the reference Gaussian.
* Lengths are points of 1/72 inch from the upper left corner.

It computes nothing.  SVG is written by the standard library.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

# Colours that stay apart for colour-blind readers, after M. Okabe and K. Ito.
_COLOURS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#777777"),
)
_GREY, _BLACK = "#999999", "#000000"
_WIDTH, _HEIGHT = 220.0, 170.0  # of one pair of axes
_LEFT, _TOP, _BELOW, _GAP = 62.0, 52.0, 40.0, 30.0
_LINE: Final = 14.0
_LETTERS: Final = 6.0  # width of a letter, generously
_BESIDE: Final = 6.0
_MARGIN: Final = 1.15  # between the outermost point and the frame


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement with its interval; `low` may be 0."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Measurements that belong together, from left to right."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Panels side by side, with one ordinate."""

    title: str
    y_label: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled circle."""

    x: float
    y: float
    radius: float
    colour: str


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text, its baseline at y."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = 9.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is on the paper, in the order of drawing."""

    width: float
    height: float
    parts: tuple[Stroke | Disc | Words, ...]


def drawing(sheet: Sheet) -> Drawing:
    """Place a sheet on paper.

    Args:
        sheet: What to show. Without points it is a title.
    """
    labels = list(
        dict.fromkeys(curve.label for panel in sheet.panels for curve in panel.curves)
    )
    colour = dict(zip(labels, itertools.cycle(_COLOURS), strict=False))
    parts: list[Stroke | Disc | Words] = [
        Words(_LEFT, 18.0, sheet.title, size=11.0),
        Words(_LEFT, 32.0, sheet.y_label),
    ]
    widest = 0.0
    for number, panel in enumerate(sheet.panels):
        left = _LEFT + number * (_WIDTH + _GAP)
        widest = left + _WIDTH
        parts += _panel(panel, left, _ordinates(sheet), colour, first=number == 0)
    legend = _TOP + _HEIGHT + _BELOW
    for number, label in enumerate(labels):
        y = legend + number * _LINE
        parts.append(Disc(_LEFT, y - 3.0, 3.0, colour[label]))
        parts.append(Words(_LEFT + 10.0, y, label))
    text = _LEFT + _LETTERS * max(len(sheet.title), len(sheet.y_label))
    return Drawing(
        width=max(widest, text) + 12.0,
        height=legend + len(labels) * _LINE,
        parts=tuple(parts),
    )


def _ordinates(sheet: Sheet) -> tuple[float, float]:
    """Return the range of all panels; it includes the reference line at 1."""
    values = [1.0]
    for panel in sheet.panels:
        for curve in panel.curves:
            for point in curve.points:
                values += [point.y, point.high, point.low or point.y]
    return min(values) / _MARGIN, max(values) * _MARGIN


def _panel(
    panel: Panel,
    left: float,
    ordinates: tuple[float, float],
    colour: dict[str, str],
    *,
    first: bool,
) -> list[Stroke | Disc | Words]:
    """Place one pair of axes with its curves."""
    low, high = ordinates
    bottom = _TOP + _HEIGHT
    abscissae = sorted({point.x for curve in panel.curves for point in curve.points})
    across = _across(abscissae, left)

    def up(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low)
        return bottom - share * _HEIGHT

    right = left + _WIDTH
    corners = ((left, _TOP), (right, _TOP), (right, bottom), (left, bottom))
    parts: list[Stroke | Disc | Words] = [
        Stroke((*corners, corners[0]), _GREY, 0.5),
        Stroke(((left, up(1.0)), (right, up(1.0))), _BLACK, 0.7, broken=True),
        Words(left + _WIDTH / 2, _TOP - 5.0, panel.title, "middle"),
        Words(left + _WIDTH / 2, bottom + 26.0, panel.x_label, "middle"),
    ]
    for x in abscissae:
        parts.append(Stroke(((across(x), bottom), (across(x), bottom + 3.0)), _GREY))
        parts.append(Words(across(x), bottom + 13.0, f"{x:g}", "middle"))
    for value in _ticks(low, high):
        parts.append(Stroke(((left - 3.0, up(value)), (left, up(value))), _GREY))
        if first:
            label = Words(left - 6.0, up(value) + 3.0, f"{value:g}", "end")
            parts.append(label)
    for number, curve in enumerate(panel.curves):
        # Side by side, so that no interval hides another.
        aside = _BESIDE * (number - (len(panel.curves) - 1) / 2)
        points = [
            (across(point.x) + aside, up(point.y), up(point.low), up(point.high))
            for point in sorted(curve.points, key=lambda point: point.x)
        ]
        parts += _curve(points, colour[curve.label])
    return parts


def _curve(
    points: Sequence[tuple[float, float, float, float]], colour: str
) -> list[Stroke | Disc | Words]:
    """Draw a line, a disc for each measurement, and a bar for its interval."""
    parts: list[Stroke | Disc | Words] = [
        Stroke(tuple((x, y) for x, y, _, _ in points), colour)
    ]
    for x, y, low, high in points:
        parts.append(Stroke(((x, low), (x, high)), colour, 2.0))
        parts.append(Disc(x, y, 2.5, colour))
    return parts


def _across(abscissae: Sequence[float], left: float) -> Callable[[float], float]:
    """Give every abscissa a place; equal steps, for they are choices."""
    step = _WIDTH / (len(abscissae) + 1)
    places = {x: left + step * (number + 1) for number, x in enumerate(abscissae)}
    return places.__getitem__


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of every decade in a range; finer steps where it is narrow."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1.0,), (1.0, 2.0, 5.0), tuple(k / 10 for k in range(10, 100))):
        found = [
            step * 10.0**decade
            for decade in decades
            for step in steps
            if low <= step * 10.0**decade <= high
        ]
        if len(found) > 2:  # noqa: PLR2004 - fewer show no scale
            return found[:: math.ceil(len(found) / 8)]
    return [1.0]


def svg_text(sheet: Sheet) -> str:
    """Return the document; equal sheets give equal text.

    Args:
        sheet: What to show.
    """
    made = drawing(sheet)
    size = f"{made.width:.1f} {made.height:.1f}"
    width, height = size.split()
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"',
        f' viewBox="0 0 {size}" width="{width}pt" height="{height}pt">',
        f"<title>{escape(sheet.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for part in made.parts:
        if isinstance(part, Stroke):
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in part.points)
            dashes = ' stroke-dasharray="4 3"' if part.broken else ""
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{part.colour}" '
                f'stroke-width="{part.width:g}"{dashes}/>'
            )
        elif isinstance(part, Disc):
            lines.append(
                f'<circle cx="{part.x:.2f}" cy="{part.y:.2f}" r="{part.radius:g}" '
                f'fill="{part.colour}"/>'
            )
        else:
            lines.append(
                f'<text x="{part.x:.2f}" y="{part.y:.2f}" font-size="{part.size:g}" '
                f'text-anchor="{part.anchor}">{escape(part.text)}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])
