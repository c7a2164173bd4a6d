"""The published bound for binomial noise (cpSGD), a baseline for comparisons.

* The constants are recalled from the publication and were not derived again, so the
  status is `recalled` and no default ever chooses this accountant. It serves as a
  baseline.
* Binomial noise is bounded: an output outside its range reveals a vector, so no Rényi
  curve exists. The bound is (ε, δ) only, and composes by the better of the basic and
  the advanced composition theorem.
* Where the theorem's condition fails, the answer is infinite.

It improves nothing. Sound and tight figures for binomial noise would come from its
log-concavity, as they do for Skellam noise.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.statement import Proof, Status
from dpnoise.events import Adjacency, BinomialEvent, NoiseEvent
from dpnoise.searches import halve

# The constants of the theorem for p = 1/2.
_B: Final = 1.0 / 3.0
_C: Final = 1.75 * math.sqrt(2.0)
_D: Final = 2.0 / 3.0
_LEAST_VARIANCE_FACTOR: Final = 23.0

_LEAST_DELTA: Final = 1e-300


def binomial_epsilon(
    delta: float, release: BinomialEvent, *, sensitivity_factor: float = 1.0
) -> float:
    """Bound epsilon of one release with binomial noise.

    Args:
        delta: Failure probability in (0, 1).
        release: The release; lengths in grid steps.
        sensitivity_factor: 1 for zero-out, 2 for replace-one adjacency.

    Returns:
        Epsilon in nats; infinite where the theorem's condition
        N/4 ≥ max(23·log(10d/δ), 2Δ∞) fails.

    Source:
        [ASY18] Theorem 1 with p = 1/2 and s = 1; recalled, not re-derived.
    """
    variance = release.num_trials / 4.0
    l1_sensitivity = sensitivity_factor * release.l1_sensitivity
    l2_sensitivity = sensitivity_factor * release.l2_sensitivity
    linf_sensitivity = sensitivity_factor * release.linf_sensitivity
    required = max(
        _LEAST_VARIANCE_FACTOR * math.log(10.0 * release.dim / delta),
        2.0 * linf_sensitivity,
    )
    if variance < required:
        return math.inf
    logarithm = math.log(1.25 / delta)
    first = l2_sensitivity * math.sqrt(2.0 * logarithm / variance)
    second = l2_sensitivity * _C * math.sqrt(math.log(10.0 / delta))
    second = (second + l1_sensitivity * _B) / (variance * (1.0 - delta / 10.0))
    third = 2.0 / 3.0 * logarithm
    third += _D * math.log(20.0 * release.dim / delta) * math.log(10.0 / delta)
    return first + second + linf_sensitivity * third / variance


@dataclass(frozen=True, slots=True)
class _Part:
    release: BinomialEvent
    sampling_rate: float
    count: int


class BinomialPaperAccountant(Accountant):
    """The (ε, δ) bound of cpSGD with basic and advanced composition."""

    name = "cpsgd-recalled"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset(Adjacency)
    status_of_theorem: ClassVar[Status] = Status.RECALLED
    proof_of_theorem: ClassVar[Proof] = Proof.PUBLISHED

    def _begin(self) -> None:
        self._parts: list[_Part] = []

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        if not isinstance(release, BinomialEvent):
            raise self._refuse(release)
        self._parts.append(_Part(release, sampling_rate, count))

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        releases = sum(part.count for part in self._parts)
        basic = self._sum_of_losses(delta / releases)[0]
        # Half of delta for the releases, half for the composition.
        losses = self._sum_of_losses(delta / (2.0 * releases))
        advanced = losses[2] + math.sqrt(2.0 * math.log(2.0 / delta) * losses[1])
        return min(basic, advanced)

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        def is_enough(log_delta: float) -> bool:
            return self._epsilon_of_exact_noise(math.exp(log_delta)) <= epsilon

        return math.exp(halve(is_enough, math.log(_LEAST_DELTA), 0.0)[1])

    def _sum_of_losses(self, delta: float) -> tuple[float, float, float]:
        """Sums of ε, ε² and ε(e^ε − 1) over all releases, each at the given delta."""
        factor = self.adjacency.sensitivity_factor
        total = squares = excess = 0.0
        for part in self._parts:
            # A sampled release fails with q·delta, so it may fail with delta/q.
            share = min(delta / part.sampling_rate, 0.5)
            loss = binomial_epsilon(share, part.release, sensitivity_factor=factor)
            if loss > _LARGEST_LOSS:
                return math.inf, math.inf, math.inf
            loss = math.log1p(part.sampling_rate * math.expm1(loss))
            total += part.count * loss
            squares += part.count * loss * loss
            excess += part.count * loss * math.expm1(loss)
        return total, squares, excess

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "The published constants for binomial noise are right; they are recalled.",
            "Every rounded vector obeys the stated L1, L2 and L∞ bounds.",
        )


_LARGEST_LOSS: Final = 300.0
