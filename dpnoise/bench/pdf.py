"""A drawing as PDF, by matplotlib, which is an extra.

It places nothing; `picture` does. Nothing imports it but `Comparison.to_pdf`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.text import Text

from dpnoise.bench.picture import Disc, Sheet, Stroke, drawing

_POINTS_PER_INCH: Final = 72.0
_ALIGNED: Final[Mapping[str, Literal["left", "center", "right"]]] = MappingProxyType(
    {"start": "left", "middle": "center", "end": "right"}
)


def write_pdf(sheet: Sheet, path: Path) -> None:
    """Write a sheet as PDF, without a date: equal sheets give equal bytes.

    Args:
        sheet: What to show.
        path: Where to write; an existing file is replaced.
    """
    made = drawing(sheet)
    inches = (made.width / _POINTS_PER_INCH, made.height / _POINTS_PER_INCH)
    figure = Figure(figsize=inches, dpi=_POINTS_PER_INCH)
    FigureCanvasPdf(figure)
    for part in made.parts:
        if isinstance(part, Stroke):
            figure.add_artist(
                Line2D(
                    [x for x, _ in part.points],
                    [made.height - y for _, y in part.points],
                    color=part.colour,
                    linewidth=part.width,
                    linestyle="--" if part.broken else "-",
                    transform=None,
                )
            )
        elif isinstance(part, Disc):
            place = (part.x, made.height - part.y)
            figure.add_artist(
                Circle(place, part.radius, color=part.colour, transform=None)
            )
        else:
            figure.add_artist(
                Text(
                    part.x,
                    made.height - part.y,
                    part.text,
                    fontsize=part.size,
                    horizontalalignment=_ALIGNED[part.anchor],
                    transform=None,
                )
            )
    figure.savefig(path, format="pdf", metadata={"CreationDate": None})
