"""PrivUnit2 and PrivUnit∞: a direction, or a vector of signs, hidden in a cap.

* The point sent lies in the best cap around the input with probability p, otherwise
  anywhere else. Divided by its mean agreement m it is unbiased
  (`dpnoise.local.sphere_cap`).
* p uses all of ε, with the exact probability of the cap instead of the published
  sufficient conditions. It is rounded so that the level can only be smaller.
* A vector shorter than the bound is first turned round with the probability that makes
  its direction unbiased, or rounded to signs coordinate by coordinate. Both happen
  before the private step, so they cost no privacy.

Limits: the points of PrivUnit2 are floats. Its level holds for the law in real
arithmetic. It does not cover the last bits of floats, or caps narrower than the spacing
of floats. PrivUnit∞ uses exact integers and Bernoulli draws only.

Sources: [Bho18] Algorithms 1 and 2; [AFT22] for the optimality of the caps. Turning
round a short vector: textbook.
"""

import math
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.local.draws import Draws
from dpnoise.local.parameters import LocalParameters
from dpnoise.local.randomiser import (
    LocalRandomiser,
    exact_level,
    lie_probability,
    split,
)
from dpnoise.local.sphere_cap import (
    LOG_TAIL_ERROR,
    CubeCap,
    SphereCap,
    best_cube_cap,
    best_sphere_cap,
    log_rest,
)
from dpnoise.local.sum_error import Scatter

_ENLARGED: Final = 1.0 + 2.0**-40  # pays for the rounding of unit vectors
# Caps at least as likely are drawn by rejection; narrower ones from their edge.
_RETRIED: Final = math.log(1 / 16)
_CURVED_FROM: Final = 4  # dimensions: below, a cosine's log density is not concave


class _CapRandomiser(LocalRandomiser):
    """The common part: a cap, the probability to miss it, and the mean agreement."""

    cap: SphereCap | CubeCap

    @cached_property
    def lie(self) -> Fraction:
        """Probability to send a point outside of the cap, exact."""
        cap, level = self.cap, self.parameters.epsilon
        # log((1 − q)/q) is off by twice the error of log q at most, as q ≤ 1/2.
        logit = cap.log_tail - log_rest(cap.log_tail) - 3 * LOG_TAIL_ERROR
        return lie_probability(level + logit)

    @cached_property
    def mean_agreement(self) -> float:
        """The m by which a point is divided, in (0, 1]."""
        cap = self.cap
        # (p − q)/(1 − q), written so that a tiny chance to miss keeps its digits.
        return cap.mean * (1.0 - float(self.lie) / -math.expm1(cap.log_tail))

    @property
    def exact_epsilon(self) -> float:
        """The level of the numbers that are drawn with, from the computed q."""
        cap = self.cap
        return exact_level(self.lie, log_rest(cap.log_tail) - cap.log_tail)


class PrivUnit2(_CapRandomiser):
    """A vector of the ball, by way of its direction (see `LocalParameters`)."""

    name: ClassVar[str] = "privunit2"
    exact_alphabet: ClassVar[bool] = False

    def __init__(self, parameters: LocalParameters) -> None:
        super().__init__(parameters)
        self.cap: SphereCap = best_sphere_cap(parameters.dim, parameters.epsilon)

    @property
    def output_norm(self) -> float:
        """bound/m, which every output has."""
        return self.parameters.bound / self.mean_agreement * _ENLARGED

    def mse(self, norm: float) -> float:
        """Return bound²/m² − norm²: the output's length does not vary."""
        square = (self.parameters.bound / self.mean_agreement) ** 2
        return max(0.0, square - norm * norm)

    def _scatters(self) -> tuple[Scatter, ...]:
        # Turned round or not, a short vector has ±bound as its mean.
        return self.scatters_at(self.output_norm, moved=self.parameters.bound)

    def scatters_at(self, radius: float, *, moved: float) -> tuple[Scatter, ...]:
        """Return bounds on the scatter of points that are multiplied by a length.

        Args:
            radius: Largest length that a point is given, caller's units.
            moved: The w of `dpnoise.local.sum_error`, caller's units.
        """
        anywhere = Scatter.in_ball(radius)
        if self.cap.dim < _CURVED_FROM:
            return (anywhere,)
        return (anywhere, Scatter.cap_bound(self.cap, radius, moved))

    def _randomise(
        self, checked: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        norm, direction = split(checked)
        share = min(norm / self.parameters.bound, 1.0)
        if not draws.bernoulli(Fraction((1.0 + share) / 2.0)):
            direction = -direction
        point = self.draw_around(direction, draws)
        point *= self.parameters.bound / self.mean_agreement
        return point

    def draw_around(
        self, direction: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        """Draw the point of the sphere for a unit vector.

        Args:
            direction: Unit vector of shape (dim,), or zeros for no direction at all.
            draws: Source of the draws.

        Returns:
            A unit vector; m times the direction on average.
        """
        inside = not draws.bernoulli(self.lie)
        short = self._draw_depth(draws) if inside else self._draw_outside(draws)
        across = draws.directions(direction.size)
        if not direction.any():
            # Around a uniform direction a point is uniform itself.
            return split(across)[1]
        along = math.fsum((across * direction).tolist())
        across -= along * direction
        _, across = split(across)
        across *= math.sqrt(short * (2.0 - short))
        across += (1.0 - short) * direction
        return across

    def _draw_depth(self, draws: Draws) -> float:
        """Draw 1 − t, t the cosine of a uniform point of the cap."""
        height, edge, power = self.cap.height, self.cap.edge, self._power
        if self.cap.dim == 2:  # noqa: PLR2004  # the circle: the angle is uniform
            angle = 2.0 * math.asin(math.sqrt(height / 2.0)) * draws.uniform()
            return 2.0 * math.sin(angle / 2.0) ** 2
        if edge * math.sqrt(2.0 * power) < 1.0 and self.cap.log_tail > _RETRIED:
            while (cosine := abs(self._draw_cosine(draws))) < edge:
                pass
            return 1.0 - cosine
        # (1 − t²)^power is log-concave: below its tangent at the edge, an exponential.
        # Lengths are in units of the height, so that the narrowest caps work too.
        slope = 2.0 * power * edge / (2.0 - height)
        while True:
            uniform = draws.uniform()
            rise = uniform
            if slope > 0.0:
                rise = -math.log1p(uniform * math.expm1(-slope)) / slope
            if rise >= 1.0:
                continue
            bent = math.log1p(-rise) + math.log1p(rise * height / (2.0 - height))
            if math.log(draws.uniform()) < power * bent + slope * rise:
                return height * (1.0 - rise)

    def _draw_outside(self, draws: Draws) -> float:
        """Draw 1 − t for a uniform point outside of the cap."""
        if self.cap.dim == 2:  # noqa: PLR2004  # the circle
            edge = 2.0 * math.asin(math.sqrt(self.cap.height / 2.0))
            angle = edge + (math.pi - edge) * draws.uniform()
            return 2.0 * math.sin(angle / 2.0) ** 2
        while (cosine := self._draw_cosine(draws)) >= self.cap.edge:
            pass
        return 1.0 - cosine

    def _draw_cosine(self, draws: Draws) -> float:
        """Draw the cosine of a uniform point of the sphere, d at least 3.

        Its density is (1 − t²)^power, below exp(−power·t²).
        """
        power = self._power
        if power == 0.0:
            return 2.0 * draws.uniform() - 1.0
        while True:
            cosine = draws.normal() / math.sqrt(2.0 * power)
            square = cosine * cosine
            if square < 1.0 and math.log(draws.uniform()) < power * (
                math.log1p(-square) + square
            ):
                return cosine

    @property
    def _power(self) -> float:
        return (self.cap.dim - 3) / 2


class PrivUnitInf(_CapRandomiser):
    """A vector of the box, by way of signs: every entry is ±bound/m.

    All draws are exact: the level holds for what the program does.
    """

    name: ClassVar[str] = "privunit-inf"
    exact_alphabet: ClassVar[bool] = True

    def __init__(self, parameters: LocalParameters) -> None:
        super().__init__(parameters)
        self.cap: CubeCap = best_cube_cap(parameters.dim, parameters.epsilon)

    @property
    def step(self) -> float:
        """bound/m, the absolute value of every entry that comes out."""
        return self.parameters.bound / self.mean_agreement

    @property
    def output_norm(self) -> float:
        """√dim·bound/m, which every output has."""
        return math.sqrt(self.parameters.dim) * self.step * _ENLARGED

    @property
    def largest_norm(self) -> float:
        """√dim·bound, of a corner of the box."""
        return math.sqrt(self.parameters.dim) * self.parameters.bound

    def _size(self, checked: NDArray[np.float64]) -> float:
        return float(np.abs(checked).max())

    def _scatters(self) -> tuple[Scatter, ...]:
        radius = self.output_norm
        return (Scatter.in_ball(radius), Scatter.of_signs(self.cap, radius))

    def mse(self, norm: float) -> float:
        """Return dim·bound²/m² − norm²: the output's length does not vary."""
        return max(0.0, self.parameters.dim * self.step**2 - norm * norm)

    def _randomise(
        self, checked: NDArray[np.float64], draws: Draws
    ) -> NDArray[np.float64]:
        shares = np.clip(checked / self.parameters.bound, -1.0, 1.0)
        # P(word < threshold) = (1 + share)/2 on 63 bits.
        thresholds = np.ldexp((1.0 + shares) / 2.0, 63).astype(np.uint64)
        signs = np.where(draws.words(checked.size) >> np.uint64(1) < thresholds, 1, -1)
        agreeing = draws.subset(self._draw_agreements(draws), checked.size)
        return np.where(agreeing, signs, -signs) * self.step

    def _draw_agreements(self, draws: Draws) -> int:
        """Draw the number of places where the signs sent agree with those intended."""
        dim, level = self.cap.dim, self.cap.level
        if draws.bernoulli(self.lie):
            while (heads := draws.fair_successes(dim)) >= level:
                pass
            return heads
        if self.cap.log_tail > _RETRIED:
            while (heads := draws.fair_successes(dim)) < level:
                pass
            return heads
        # C(d, l) falls by ratios that fall: propose a geometric law with the first
        # ratio and keep each step with the ratio of the ratios.
        first = Fraction(dim - level, level + 1)
        heads = level
        while draws.bernoulli(first):
            ratio = Fraction(dim - heads, heads + 1)
            heads = heads + 1 if draws.bernoulli(ratio / first) else level
        return heads
