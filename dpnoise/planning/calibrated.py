"""What the accountants said that a grid needs.

It asks nobody.
"""

from dataclasses import dataclass
from fractions import Fraction

from dpnoise.mechanisms.base import Mechanism
from dpnoise.planning.accountant_choice import CURVE


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What a scale needs.

    Args:
        mechanism: With placeholders for noise and modulus.
        variance: The counted variance, grid steps².
        accountant: Who asked for it.
        candidates: All that were asked.
    """

    mechanism: Mechanism
    variance: Fraction
    accountant: str
    candidates: tuple[str, ...]

    def scaled_to(self, scale_factor: float) -> Fraction:
        """Return as much noise on another grid, in its grid steps²."""
        change = Fraction(scale_factor / self.mechanism.parameters.scale_factor)
        return self.variance * change * change

    @property
    def is_curve(self) -> bool:
        """Whether the accountant builds a whole curve for each answer."""
        return self.accountant == CURVE
