"""A rule that a client in any language can check: two closed forms, no tables.

* Statement (a) is that of `mixture-gdp`; statement (b) adds the Rényi divergences
  below and is made where no coordinate exceeds one grid step. Both are
  theorems, and the lesser of the two is stated.
* The whole rule is written down, for those who implement it, in
  `docs/rule-for-small-clients.md`; vectors come with `secagg.conformance`.
* Its price is up to a tenth of epsilon, at a few grid steps per unit, and next to
  nothing on fine grids.

It covers one kind of release only, without selection.

The moments of a rounded coordinate need neither tables nor special functions.  A
coordinate |x| ≤ 1 that is rounded to 0 or ±1 is a unit shift *sampled* at rate |x|.
With M from `unit_shift` the noise hides a unit shift like a Gaussian shift of M, which
gives a Rényi divergence by a finite sum of terms that are not negative. s = M². For an
integer order α ≥ 2

    A_α(p) − 1 = Σ_(l=2)^α C(α, l)·p^l·c_l,   c_0 = 1, c_1 = 0,
    c_(l+1) = (e^(ls) − 1)·c_l + Σ_(i<l) C(l, i)·e^(si)·(e^s − 1)^(l−i)·c_i.

Rule 1: *Sampling.* By Blackwell's theorem [Bla53] some Markov kernel turns (N(0, 1),
        N(M, 1)) into (noise, noise + 1). Kernels are linear, so it turns (N(0, 1),
        (1−p)·N(0, 1) + p·N(M, 1)) into (noise, rounded x + noise) at p = |x|, and
        divergences can only fall: with L = dN(M, 1)/dN(0, 1) the order α costs at most
        log A_α(p)/(α − 1), A_α(p) = E(1 + p·(L − 1))^α.
Rule 2: *The sum.* c_l = E(L − 1)^l. Expand (1 + p(L − 1))^α. Under the law with density
        L, L has the law of e^s·L, so E[L·(L − 1)^l] = E(e^s·L − 1)^l, which is
        Σ_i C(l, i)·e^(si)·(e^s − 1)^(l−i)·c_i; and c_(l+1) = E[L·(L − 1)^l] − c_l. By
        induction no c_l is negative, hence nothing cancels.
Rule 3: *The other direction is the smaller one.* Let H(γ) be the hockey-stick
        divergence of the unit shift, the same both ways by reflection. For γ ≥ 1 that
        of (mixture, base) is p·H(1 + (γ−1)/p) and that of (base, mixture) a·H(pγ/a)
        with a = p − (1−p)(γ−1) ≤ p, or 0 if a ≤ 0. Since pγ/a − 1 − (γ−1)/p =
        (1−p)(γ−1)²/(pa) ≥ 0, the first is the larger; moments of the two directions
        differ by α(α−1)·∫_1^∞ (γ^(α−2) − γ^(−α−1))·(first − second) dγ ≥ 0.
Rule 4: *The worst coordinate.* (A_α(p) − 1)/p² grows with p, log(1+u)/u falls with u:
        on the cell (θh, h] the quotient log A_α(p)/p² is at most (A_α(h) − 1)/h²
        times log(1+u)/u at u = A_α(θh) − 1, and on (0, h] at most (A_α(h) − 1)/h².
Rule 5: *Vectors and releases.* Divergences add over coordinates: at most κ_α·C for
        ‖x‖² ≤ C, κ_α being the largest quotient of rule 4 over α − 1. Releases add.

All rules are elementary and ours but for [Bla53]. It covers variances from 4 on.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.conversion import renyi_delta, renyi_epsilon
from dpnoise.accounting.statement import MIXTURE_ASSUMPTIONS, Proof, Status
from dpnoise.accounting.tradeoff.mixture_gdp import MixtureGDPAccountant
from dpnoise.accounting.tradeoff.unit_shift import skellam_shift_closed_form
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import Adjacency, NoiseEvent, Repeated, SkellamMixtureEvent
from dpnoise.floats import FloatArray

MOMENT_ORDERS: Final = (
    *range(2, 33),
    *range(34, 65, 3),
    *(72, 80, 96, 112, 128, 160, 192, 256),
)
"""Orders of which the least statement is made."""

_LARGEST_EXPONENT: Final = 600.0  # of α²M²: the moments stay floats
_CELLS: Final = 40
_RATIO: Final = 0.84  # of the two ends of a cell


def moments_of_unit_shift(unit_shift: float, count: int) -> list[float]:
    """Return c_0 … c_count for a Gaussian shift.

    Args:
        unit_shift: The shift M, above 0, with count²·M² at most 600.
        count: Largest index, at least 1.

    Returns:
        The moments, to a relative error far below 1e-9.
    """
    square = unit_shift * unit_shift
    step = math.expm1(square)
    found = [1.0, 0.0]
    for last in range(1, count):
        following = math.expm1(last * square) * found[last]
        for index in range(last):
            weight = math.comb(last, index) * step ** (last - index)
            following += weight * math.exp(square * index) * found[index]
        found.append(following)
    return found


@functools.lru_cache(maxsize=256)
def worst_quotients(
    unit_shift: float, largest: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Bound κ_α for all orders whose moments are floats.

    Args:
        unit_shift: Bound M on the Gaussian shift that hides a unit shift, above 0.
        largest: Bound on every absolute coordinate, in (0, 1].

    Returns:
        Orders α, and κ_α for each; both empty where M exceeds 12.
    """
    orders = tuple(
        order
        for order in MOMENT_ORDERS
        if (order * unit_shift) ** 2 <= _LARGEST_EXPONENT
    )
    if not orders:
        return (), ()
    moments = moments_of_unit_shift(unit_shift, orders[-1])
    ends = [largest * _RATIO**cell for cell in range(_CELLS + 1)]
    found: list[float] = []
    for order in orders:
        terms = [math.comb(order, k) * moments[k] for k in range(2, order + 1)]
        # (A_α(h) − 1)/h² at the ends of all cells.
        excess = [_polynomial(terms, end) for end in ends]
        worst = excess[-1]
        for cell in range(_CELLS):
            inner = excess[cell + 1] * ends[cell + 1] ** 2
            shrink = math.log1p(inner) / inner if inner > 0.0 else 1.0
            worst = max(worst, excess[cell] * shrink)
        found.append(worst / (order - 1))
    return orders, tuple(found)


def _polynomial(coefficients: list[float], x: float) -> float:
    """Evaluate a polynomial with coefficients that are not negative at x ≥ 0."""
    value = 0.0
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


# Last digits of another library's functions must not turn a yes into a no.
_ROUNDED_UP: Final = 1.0 + 1e-9


class MixtureSimpleAccountant(Accountant):
    """States the lesser of two closed forms for rounded vectors.

    Source:
        This project; proofs in `rounded_shift` and above.
    """

    name = "mixture-simple"
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    status_of_theorem: ClassVar[Status] = Status.CERTIFIED
    proof_of_theorem: ClassVar[Proof] = Proof.OWN

    def _begin(self) -> None:
        self._release: SkellamMixtureEvent | None = None
        self._count = 0

    def _add(self, release: NoiseEvent, sampling_rate: float, count: int) -> None:
        if not isinstance(release, SkellamMixtureEvent):
            raise self._refuse(release)
        if sampling_rate < 1.0:
            raise TheoremNotApplicableError(
                f"{self.name} counts no selection; name no accountant",
                theorem="the rule for small clients",
                parameter="selection_rate",
                value=sampling_rate,
                nearest="1",
            )
        if self._release not in {None, release}:
            raise TheoremNotApplicableError(
                f"{self.name} covers repetitions of one release; name no accountant",
                theorem="the rule for small clients",
                parameter="event",
                value=type(release).__name__,
                nearest="Repeated(event, count)",
            )
        self._release = release
        self._count += count

    def _shift_account(self) -> Accountant | None:
        """Statement (a)."""
        if self._release is None:
            return None
        # The sampler's distance is charged by this account.
        exact = dataclasses.replace(self._release, sampler_distance=0.0)
        made = MixtureGDPAccountant(adversary=self.adversary, adjacency=self.adjacency)
        return made.compose(Repeated(exact, self._count))

    def _curve(self) -> tuple[FloatArray, FloatArray]:
        """Orders and divergences of statement (b); empty where it is not made."""
        given = self._release
        orders: tuple[int, ...] = ()
        quotients: tuple[float, ...] = ()
        if given is not None and given.linf_bound <= 1.0:
            unit = skellam_shift_closed_form(given.aggregate_noise_variance)
            orders, quotients = worst_quotients(unit, float(given.linf_bound))
        norm = 0.0 if given is None else given.l2_clip_squared_steps
        return (
            np.array(orders, dtype=np.float64),
            self._count * norm * np.array(quotients, dtype=np.float64),
        )

    def _delta_of_exact_noise(self, epsilon: float) -> float:
        account = self._shift_account()
        if account is None:
            return 0.0
        return min(
            account.delta(epsilon / _ROUNDED_UP),
            renyi_delta(*self._curve(), epsilon / _ROUNDED_UP),
        )

    def _epsilon_of_exact_noise(self, delta: float) -> float:
        account = self._shift_account()
        if account is None:
            return 0.0
        least = min(account.epsilon(delta), renyi_epsilon(*self._curve(), delta))
        return least * _ROUNDED_UP

    def _assumptions(self) -> tuple[str, ...]:
        return MIXTURE_ASSUMPTIONS

    def _details(self) -> Mapping[str, str]:
        return MappingProxyType({"orders": str(len(self._curve()[0]))})
