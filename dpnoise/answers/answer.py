"""What the answers to all questions have in common: estimates, a table, a picture.

An answer is a few numbers that carry noise. Each stands in `estimates` with an
interval, and all intervals of one answer hold together with its confidence.
"""

import abc
import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpnoise.errors import MissingExtraError
from dpnoise.floats import text_between

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number and where it may lie.

    Attributes:
        value: Point estimate.
        lowest: Lower end of the interval.
        highest: Upper end.
    """

    value: float
    lowest: float
    highest: float


class Answer(abc.ABC):
    """What a noisy sum says about a question.

    A subclass has the attribute.

    Attributes:
        confidence: That all intervals hold, in (0, 1).
    """

    __slots__ = ()

    confidence: float

    @property
    @abc.abstractmethod
    def estimates(self) -> tuple[tuple[str, Estimate], ...]:
        """What was found: labels, each with its number and interval."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """The numbers with their intervals, a line each."""

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the numbers with their intervals, by matplotlib.

        Args:
            axes: Where to draw; a new figure of pyplot by default, which a notebook
                shows by itself.

        Returns:
            The axes, for titles, or for `figure.savefig`.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if axes is None:
            axes = _new_axes()
        self._draw(axes)
        return axes

    @property
    def _caption(self) -> str:
        return f"{100.0 * self.confidence:.10g} % intervals, all together"

    def _draw(self, axes: "Axes") -> None:
        """Draw the estimates as bars; answers without counts override this."""
        labels = [label for label, _ in self.estimates]
        values = [each.value for _, each in self.estimates]
        axes.bar(labels, values, yerr=self._reaches(), capsize=4.0)
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.set_title(self._caption)

    def _reaches(self) -> list[list[float]]:
        """Return how far intervals reach below and above the numbers, at least 0."""
        found = [each for _, each in self.estimates]
        return [
            [max(0.0, each.value - each.lowest) for each in found],
            [max(0.0, each.highest - each.value) for each in found],
        ]

    def _repr_html_(self) -> str:
        """The numbers and their intervals as a table, for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{each.value:.6g}</td>"
            f"<td>{text_between(each.lowest, each.highest)}</td></tr>"
            for label, each in self.estimates
        )
        return (
            "<table><tr><th></th><th>estimate</th>"
            f"<th>{self._caption}</th></tr>{rows}</table>"
        )


def _new_axes() -> Any:  # noqa: ANN401 - matplotlib may be missing
    """Return axes of matplotlib, or say that it is missing."""
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra, on demand
    except ImportError as error:
        raise MissingExtraError(
            "a picture needs matplotlib, which is not installed; run "
            "pip install 'secagg[viz]', or print the answer"
        ) from error
    return plt.subplots(layout="constrained")[1]
