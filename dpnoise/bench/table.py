"""What a comparison found: rows, and the forms in which people want them.

* A row is a cell of mechanisms × bits × budgets. What was refused is a row too, with
  the reason: a hole in a table says nothing.
* CSV and SVG need the standard library only. A data frame needs pandas and a PDF needs
  matplotlib: both come with `pip install 'secagg[research]'`.

It runs nothing.
"""

import csv
import dataclasses
import html
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpnoise.bench.picture import Curve, Panel, Point, Sheet, svg_text
from dpnoise.errors import MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mechanism at one bit width and one budget.

    Errors are those of the sum, squared, means over coordinates, caller's units². What
    a refused row does not know is None.

    Args:
        mechanism: Its name.
        bits: Bits per coordinate; None where they were left open and no plan was made.
        epsilon: The budget.
        scale_factor: Grid steps per unit.
        noise_variance: Counted variance, grid steps².
        accountant: Who calibrated it.
        mse: Mean over the repeats.
        mse_low: Lower end of its confidence interval, at least 0.
        mse_high: Upper end.
        forecast: What is expected, mean over the pilot cohorts.
        forecast_low: Lower end of its confidence interval, at least 0.
        forecast_high: Upper end.
        gaussian: What the central Gaussian mechanism would cost.
        wrap_probability: Forecast probability that one coordinate wraps, at the most
            noise that any session can be left with; mean over the pilot cohorts.
        wrap_low: Lower end of its confidence interval, at least 0.
        wrap_high: Upper end, at most 1.
        refused: Why there is no plan; empty where there is one.
    """

    mechanism: str
    bits: int | None
    epsilon: float
    scale_factor: float | None = None
    noise_variance: float | None = None
    accountant: str | None = None
    mse: float | None = None
    mse_low: float | None = None
    mse_high: float | None = None
    forecast: float | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    gaussian: float | None = None
    wrap_probability: float | None = None
    wrap_low: float | None = None
    wrap_high: float | None = None
    refused: str = ""


_COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_SHOWN = ("mechanism", "bits", "epsilon", "mse", "mse_low", "mse_high")
_SHOWN_LAST = ("forecast", "forecast_low", "forecast_high", "gaussian", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows of a comparison, and what they have in common.

    Args:
        rows: In the order of mechanisms, bits, budgets as asked for.
        clients: Vectors in every sum.
        dimension: Coordinates of a vector.
        delta: Failure probability of every budget.
        repeats: Sums that every row was measured by.
        confidence: Probability that all intervals hold together.
        one_draw: Whether the noise of all shares was drawn at once.
    """

    rows: tuple[Row, ...]
    clients: int
    dimension: int
    delta: float
    repeats: int
    confidence: float
    one_draw: bool

    @property
    def title(self) -> str:
        """What the rows have in common, in one line."""
        return (
            f"n = {self.clients}, d = {self.dimension}, δ = {self.delta:.3g}, "
            f"{self.repeats} sums, intervals of {100 * self.confidence:.10g} % together"
        )

    def columns(self) -> dict[str, list[object]]:
        """Return the table by columns, named as the fields of `Row`."""
        return {name: [getattr(row, name) for row in self.rows] for name in _COLUMNS}

    def to_csv(self, path: Path | str) -> None:
        """Write the table as CSV, floats in full; what is not known stays empty.

        Args:
            path: Where to write; an existing file is replaced.
        """
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            writer.writerows(dataclasses.astuple(row) for row in self.rows)

    def to_dataframe(self) -> Any:  # noqa: ANN401 - pandas is not always there
        """Return the table as a `pandas.DataFrame`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return _extra("pandas").DataFrame(self.columns())

    def to_svg(self, path: Path | str) -> None:
        """Draw measured errors over the central Gaussian's, and write them as SVG.

        Args:
            path: Where to write; an existing file is replaced.
        """
        Path(path).write_text(svg_text(self.sheet()), encoding="utf-8")

    def to_pdf(self, path: Path | str) -> None:
        """Write the picture of `to_svg` as PDF.

        Args:
            path: Where to write; an existing file is replaced.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        _extra("matplotlib")
        importlib.import_module("dpnoise.bench.pdf").write_pdf(self.sheet(), Path(path))

    def sheet(self) -> Sheet:
        """Return the picture: one panel for each budget, the bits along the axis.

        With one row for each budget, the budgets stand along the axis of one panel.
        Rows that were refused have no point.
        """
        measured = [row for row in self.rows if row.mse is not None]
        cells = {(row.mechanism, row.epsilon) for row in measured}
        by_bits = len(measured) > len(cells)
        panels = []
        budgets = sorted({row.epsilon for row in measured}) if by_bits else [0.0]
        for epsilon in budgets:
            here = [row for row in measured if not by_bits or row.epsilon == epsilon]
            names = dict.fromkeys(row.mechanism for row in here)
            curves = tuple(
                Curve(
                    name,
                    tuple(
                        _point(row, by_bits=by_bits)
                        for row in here
                        if row.mechanism == name
                    ),
                )
                for name in names
            )
            panels.append(
                Panel(
                    f"ε = {epsilon:g}" if by_bits else "",
                    "bits" if by_bits else "ε",
                    curves,
                )
            )
        return Sheet(self.title, "error over the central Gaussian's", tuple(panels))

    def __str__(self) -> str:
        """The table for a terminal."""
        cells = [(*_SHOWN, *_SHOWN_LAST), *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(
                text.ljust(width) for text, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in cells
        )
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        head = "".join(f"<th>{name}</th>" for name in (*_SHOWN, *_SHOWN_LAST))
        body = "".join(
            "<tr>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in _cells(row))
            + "</tr>"
            for row in self.rows
        )
        title = html.escape(self.title)
        return f"<table><caption>{title}</caption><tr>{head}</tr>{body}</table>"


def _point(row: Row, *, by_bits: bool) -> Point:
    """A row that was measured, as multiples of the central Gaussian's error."""
    x = row.bits if by_bits else row.epsilon
    unit = row.gaussian or 1.0
    low, middle, high = (
        float(value or 0.0) / unit for value in (row.mse_low, row.mse, row.mse_high)
    )
    return Point(float(x or 0), middle, low, high)


def _cells(row: Row) -> tuple[str, ...]:
    values = (getattr(row, name) for name in (*_SHOWN, *_SHOWN_LAST))
    return tuple(_cell_text(value) for value in values)


def _cell_text(value: object) -> str:
    """Return a value as text."""
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _extra(name: str) -> Any:  # noqa: ANN401 - whatever the library is
    """Import a library of the research extra, or say that it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {name}, which is not installed; run "
            "pip install 'secagg[research]', or use to_csv and to_svg"
        ) from error
