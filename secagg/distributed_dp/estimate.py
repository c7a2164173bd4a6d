"""Error, intervals and mean of a released sum, and its text.

The operator's `ReleasedSum` and the client's `Contribution` share this base, so both
state the same error of the same sum. A client knows the noise less exactly.
"""

import html
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import ParameterError
from dpnoise.floats import plus_minus
from dpnoise.mechanisms import SumError
from secagg.distributed_dp.aggregator_noise import TwoAggregatorReport
from secagg.distributed_dp.report import PrivacyReport
from secagg.errors import ErrorCode

EXACT: Final = SumError(Fraction(0))
"""The error of a sum without noise."""

_SHOWN: Final = 3
_SHOWN_IN_TABLES: Final = 8

_Array = npt.NDArray[Any]


class SumEstimate:
    """A sum with its error.

    Subclasses define the attributes.

    Attributes:
        session_number: Number of the session.
        inputs: Number of vectors in the sum.
        values: The sum, shape (d,), caller's units; None where it was not fetched.
        privacy: What the task costs its users; None for exact sums.
        error: Model of the error, from which the other figures follow.
    """

    __slots__ = ()

    session_number: int
    inputs: int
    values: _Array | None
    privacy: PrivacyReport | TwoAggregatorReport | None
    error: SumError

    @property
    def standard_error(self) -> float:
        """Root mean square error over the entries, at most, caller's units.

        It compares the estimate with the sum of the vectors that arrived, after
        clipping. It covers the noise in this sum, rounding, secret selection and a
        local randomiser. 0 for an exact sum.

        It does not cover what a clip takes off long vectors, or zeros in the place of
        vectors. Nor does it cover entries that wrap around the modulus, whose number
        the plan bounds, and clients that answer wrongly or omit their noise.
        """
        return self.error.standard_error

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The sum divided by the public number of vectors, shape (d,).

        Its standard error is `standard_error / inputs`.

        Raises:
            LocalProtocolError: This client has not fetched the sum.
        """
        return np.asarray(self._fetched() / self.inputs, np.float64)

    def interval(
        self, confidence: float = 0.95, *, joint: bool = False, of_mean: bool = False
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return confidence intervals of the sum of the vectors, entry by entry.

        They cover what `standard_error` covers. For counts (`skellam-counts`) the ends
        are integers that hold with at least this confidence.

        Args:
            confidence: Probability that an interval holds, in (0, 1).
            joint: Whether all intervals hold together with it, not only each by itself.
            of_mean: Return the intervals of `mean`.

        Returns:
            Lower and upper ends, shape (d,), caller's units.

        Raises:
            LocalProtocolError: The error of this sum is not noise and rounding alone;
                `error.flaws` has the reasons. Or the confidence is out of range, or
                this client has not fetched the sum.
        """
        values = self._fetched()
        if self.error.flaws:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"this sum has no interval: {'; '.join(self.error.flaws)}",
                fix="Use standard_error: it bounds the part of the error that is "
                "known, on average over the entries.",
            )
        try:
            half = self.error.half_width(confidence, counts=values.size if joint else 1)
        except ParameterError as error:
            raise ErrorCode.LOCAL_MISUSE.error(
                str(error), fix="Give a confidence such as 0.95."
            ) from None
        over = float(self.inputs) if of_mean else 1.0
        return (values - half) / over, (values + half) / over

    def __str__(self) -> str:
        """Return the first entries with their standard error, and the task's cost."""
        head = f"sum of {self.inputs} vectors (session {self.session_number}): "
        lines = [f"{head}{self._entries_text(_SHOWN)}; {self._cost()}"]
        lines += [f"no interval: {flaw}" for flaw in self.error.flaws]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same text as HTML, for notebooks."""
        rows = [
            ("session", str(self.session_number)),
            ("vectors", str(self.inputs)),
            ("sum", self._entries_text(_SHOWN_IN_TABLES)),
            ("privacy", self._cost()),
            *(("no interval", flaw) for flaw in self.error.flaws),
        ]
        cells = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>"
            for label, text in rows
        )
        return f"<table>{cells}</table>"

    def _fetched(self) -> _Array:
        """Return the values, which must have been fetched."""
        if self.values is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "this client has not fetched the sum",
                fix="Let the client fetch sums, or read the sum first.",
            )
        return self.values

    def _entries_text(self, most: int) -> str:
        """Return the first entries with their error."""
        if self.values is None:
            return "not fetched"
        shown = ", ".join(plus_minus(self.values[:most].tolist(), self.standard_error))
        if self.values.size > most:
            return f"{shown}, … ({self.values.size} entries)"
        return shown

    def _cost(self) -> str:
        if self.privacy is None:
            return "exact, without noise"
        return self.privacy.figures()
