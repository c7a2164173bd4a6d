"""Privacy-loss distributions: a pair of laws that dominates one release.

A release is described by a finite pair of laws (A, B). Its hockey-stick divergences are
at least those of the release, in both directions and at every epsilon. By Blackwell's
theorem [Bla53] some randomised map turns (A, B) into the release. Applying such maps
one after the other, each chosen by what was seen before, shows that products of pairs
dominate adaptive compositions.

* The divergence of a release is a convex function of t = e^ε. Chords between upper
  bounds are upper bounds, so a pair is built by connecting dots linearly in t.
* Moving an atom to two neighbours on a grid keeps its mass under both laws. That is
  a randomised map undone, so the new pair dominates the old one.
* Poisson sampling at rate q maps (A, B) to ((1−q)·B + q·A, B), an exact identity.
* Both directions are one pair, read forwards and backwards.

It depends on no mechanism; `gaussian_pld` and `mixture_pld` supply curves.
"""

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dpnoise.errors import CertificateError
from dpnoise.floats import FloatArray

Indices: TypeAlias = npt.NDArray[np.int64]

_INFLATION: Final = 1.0 + 1e-8
"""Factor on the input curve. Masses are second differences of the curve. Summing them
twice returns the curve. Its relative error is at most 2^-52 times the square of the
number of points that matter, about 10^4."""

_ROUNDS_PER_DROP: Final = 64  # rounds; a curve that is not mere rounding needs a dozen

LOSS_ERROR: Final = 2.0**-46
"""How far the loss of an atom may be off, nats."""


@dataclass(frozen=True, slots=True, eq=False)
class DominatingPair:
    """Two laws on a common set of losses.

    Args:
        losses: Privacy losses log dA/dB of the atoms in nats, increasing, shape (n,).
        upper: Mass of each atom under A, shape (n,), at least 0.
        lower: Mass of each atom under B, shape (n,), at least 0.
        upper_infinite: Mass under A of outputs that B never produces.
        lower_infinite: Mass under B of outputs that A never produces.
    """

    losses: FloatArray
    upper: FloatArray
    lower: FloatArray
    upper_infinite: float
    lower_infinite: float

    @classmethod
    def from_curves(
        cls, epsilons: FloatArray, forward: FloatArray, reverse: FloatArray
    ) -> "DominatingPair":
        """Connect upper bounds on the divergence in both directions.

        Args:
            epsilons: Increasing, beginning with 0, shape (n,), n at least 2.
            forward: Upper bounds on the divergence of P from Q at these epsilons, in
                [0, 1], shape (n,).
            reverse: The same for Q from P.

        Returns:
            A pair that dominates every (P, Q) below the two curves.

        Raises:
            CertificateError: A bound is not a number.

        Source:
            [DRV22] connect-the-dots, on an arbitrary grid and for curves that need not
            be convex.
        """
        bounded = [
            np.minimum(1.0, np.minimum.accumulate(curve) * _INFLATION)
            for curve in (forward, reverse)
        ]
        if not all(bool(np.all(curve >= 0.0)) for curve in bounded):
            raise CertificateError("a divergence bound is negative or no number")
        # At ε = 0 both directions are the total variation distance.
        at_zero = min(float(bounded[0][0]), float(bounded[1][0]))
        # F(t) = H(t) − max(0, 1 − t), by H(t) = 1 − t + t·H_reverse(1/t) for t < 1.
        left = np.exp(-epsilons[:0:-1])
        losses = np.concatenate([-epsilons[:0:-1], epsilons])
        excess = np.concatenate([left * bounded[1][:0:-1], [at_zero], bounded[0][1:]])
        return _lower_hull(losses, excess)

    @property
    def reversed(self) -> "DominatingPair":
        """The pair with the roles of the two laws exchanged."""
        return DominatingPair(
            losses=-self.losses[::-1],
            upper=self.lower[::-1],
            lower=self.upper[::-1],
            upper_infinite=self.lower_infinite,
            lower_infinite=self.upper_infinite,
        )

    def sampled(self, sampling_rate: float) -> "DominatingPair":
        """Return the pair of a release under an independent selection of each user.

        Args:
            sampling_rate: Probability q in (0, 1].

        Returns:
            The pair ((1−q)·B + q·A, B).

        Source:
            [ZDW22] Theorem 11; here an identity between the pairs themselves.
        """
        if sampling_rate >= 1.0:
            return self
        rest = 1.0 - sampling_rate
        # e^loss of the mixture is 1 − q + q·e^ℓ, never below 1 − q.
        losses = np.logaddexp(math.log(rest), math.log(sampling_rate) + self.losses)
        upper = rest * self.lower + sampling_rate * self.upper
        return DominatingPair(
            losses=np.concatenate([[math.log(rest)], losses]),
            upper=np.concatenate([[rest * self.lower_infinite], upper]),
            lower=np.concatenate([[self.lower_infinite], self.lower]),
            upper_infinite=sampling_rate * self.upper_infinite,
            lower_infinite=0.0,
        )

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence of A from B.

        Args:
            epsilon: Any real number of nats.

        Returns:
            Σ (A − e^ε·B)_+.
        """
        above = self.losses > epsilon
        gain = -np.expm1(epsilon - self.losses[above])
        return float((self.upper[above] * gain).sum()) + self.upper_infinite

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at which the divergence of A from B is delta.

        Args:
            delta: Failure probability, in (0, 1).

        Returns:
            Epsilon in nats, at least 0, rounded up by 2^-46; infinite if the mass of
            infinite loss alone exceeds delta.
        """
        allowed = delta - self.upper_infinite
        if allowed < 0.0:
            return math.inf
        upper = np.cumsum(self.upper[::-1])[::-1]
        lower = np.cumsum(self.lower[::-1])[::-1]
        # At a loss of its own an atom no longer counts. The divergence there is that of
        # the atoms from it on, and it falls from one atom to the next.
        beyond = np.flatnonzero(upper - np.exp(self.losses) * lower > allowed)
        first = int(beyond[-1]) + 1 if beyond.size else 0
        if first == self.losses.size or upper[first] <= allowed:
            at = float(self.losses[first - 1]) if first else 0.0
        else:
            at = math.log((float(upper[first]) - allowed) / float(lower[first]))
        return max(0.0, at + LOSS_ERROR) if at > 0.0 else 0.0

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        """Mean and variance of the finite losses under A."""
        total = float(self.upper.sum())
        mean = float((self.upper * self.losses).sum()) / total
        variance = float((self.upper * (self.losses - mean) ** 2).sum()) / total
        return mean, variance

    def on_grid(self, step: float) -> tuple[Indices, FloatArray]:
        """Move A's mass to multiples of a step without weakening the pair.

        Args:
            step: Grid width in nats, greater than 0.

        Returns:
            Grid indices, not sorted and with repetitions, and A's mass at each.
        """
        index = np.floor(self.losses / step)
        offset = np.clip(self.losses - index * step, 0.0, step)
        # Keeping ΣA and ΣB gives the upper neighbour (1−e^(−offset))/(1−e^(−step)).
        share = np.expm1(-offset) / math.expm1(-step)
        at = index.astype(np.int64)
        masses = [self.upper * (1.0 - share), self.upper * share]
        return np.concatenate([at, at + 1]), np.concatenate(masses)


def _lower_hull(losses: FloatArray, excess: FloatArray) -> DominatingPair:
    """Turn points (e^loss, F) into the pair of their convex minorant.

    Dropping a point is always sound: the chord over it is an upper bound too. Points
    with a negative second difference are not vertices of the hull. They are dropped
    together, until no such point remains. On a curve so flat that its points differ by
    rounding alone, this would not end. After some rounds the points next to them are
    therefore dropped as well, more of them in every further round.
    """
    rounds = 0
    while True:
        lower = _second_differences(losses, excess)
        keep = np.concatenate([[True], lower[1:-1] >= 0.0, [True]])
        if bool(keep.all()):
            break
        rounds += 1
        for _ in range(min((1 << rounds // _ROUNDS_PER_DROP) - 1, keep.size)):
            keep[:-1] &= keep[1:]
            keep[1:] &= keep[:-1]
        keep[[0, -1]] = True
        losses, excess = losses[keep], excess[keep]
    lower = np.maximum(lower, 0.0)
    return DominatingPair(
        losses=losses,
        upper=np.exp(losses) * lower,
        lower=lower,
        upper_infinite=float(excess[-1]),
        lower_infinite=float(excess[0] * math.exp(-losses[0])),
    )


def _second_differences(losses: FloatArray, excess: FloatArray) -> FloatArray:
    """Return the jumps of dH/dt at the points: the masses under B."""
    t = np.exp(losses)
    start, stop = losses[:-1], losses[1:]
    width = t[:-1] * np.expm1(stop - start)
    rise = np.diff(excess)
    # A segment across t = 1 exists only if that point was dropped.
    across = (start < 0.0) & (stop > 0.0)
    rise = np.where(across, rise + np.expm1(start), rise)
    slopes = rise / width
    # H = F + max(0, 1 − t): the slope of H is one less on the left of t = 1.
    base = np.where(stop <= 0.0, -1.0, 0.0)
    first = slopes[0] - excess[0] * math.exp(-losses[0]) + (base[0] + 1.0)
    jumps = np.diff(slopes) + np.diff(base)
    return np.concatenate([[first], jumps, [-slopes[-1] - base[-1]]])
