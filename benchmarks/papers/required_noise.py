"""How much noise each mechanism needs for a budget, under each accountant by name.

* Everything is an aggregate variance per coordinate in grid steps squared, at a given
  scale; all n shares count, as in the publications.
* "Published" means: the publication's theorem with its conditions, through this
  project's accountant of that name. `smm_formula_only` omits the conditions; it is
  not a privacy claim, and only the reproduction scripts can call it.
* Conditional rounding uses the norm bound of [Aga21] Proposition 4.2 with its
  β = e^(−1/2), floored to what integer vectors can reach.

It runs no mechanism; `sum_experiment` does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpnoise.accounting import calibrate, make_accountant
from dpnoise.accounting.gaussian import analytic_gaussian_stddev
from dpnoise.accounting.published.smm import largest_linf_bound
from dpnoise.encoding.scaling import conditional_squared_bound
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adversary,
    BinomialEvent,
    DistributedDiscreteGaussianEvent,
    NoiseEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    SkellamEvent,
    SkellamMixtureClippedEvent,
)
from dpnoise.mechanisms import NoiseRule, make_mechanism
from dpnoise.mechanisms.parameters import DEFAULT_ROUNDING_BIAS, MechanismParameters

PUBLISHED_ORDERS: Final = range(2, 101)
"""The orders that [Bao22] section 6.1 minimises over."""

_ANY_MODULUS: Final = 1 << 32  # no event depends on it
_SLIGHTLY_LESS: Final = Fraction(4, 5)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent.

    Args:
        epsilon: Privacy loss in nats.
        delta: Failure probability.
        steps: Number of releases.
        sampling_rate: Poisson sampling rate of each release; 1 for none.
    """

    epsilon: float
    delta: float
    steps: int = 1
    sampling_rate: float = 1.0

    @property
    def adversary(self) -> Adversary:
        """Return the adversary; sampling hides only from readers of the model."""
        sampled = self.sampling_rate < 1.0
        return Adversary.MODEL_READER if sampled else Adversary.SERVER

    def accountant(self, name: str) -> str:
        """The accountant that counts the sampling as the publications do.

        They sample users whose noise comes in shares, which no deployment can hide:
        the figures are comparisons, and accountant and output say "hypothetical".
        """
        return f"hypothetical-{name}" if self.sampling_rate < 1.0 else name

    def releases(self, one: NoiseEvent) -> PrivacyEvent:
        """All releases, given one of them."""
        single: PrivacyEvent = one
        if self.sampling_rate < 1.0:
            single = PoissonSampled(one, self.sampling_rate)
        return single if self.steps == 1 else Repeated(single, self.steps)


@dataclass(frozen=True, slots=True)
class Setting:
    """Vectors on a grid.

    Args:
        dim: Coordinates after rotation and padding.
        radius: L2 clip, caller's units.
        scale_factor: Grid steps per unit.
        clients: Number of noise shares that count.
    """

    dim: int
    radius: float
    scale_factor: float
    clients: int

    @property
    def squared_steps(self) -> float:
        """The squared clip in grid steps."""
        return (self.scale_factor * self.radius) ** 2

    @property
    def rounded_squared_bound(self) -> int:
        """Bound on the squared norm of a conditionally rounded vector."""
        return conditional_squared_bound(
            self.scale_factor * self.radius, self.dim, DEFAULT_ROUNDING_BIAS
        )

    def skellam(self, noise_variance: Fraction) -> SkellamEvent:
        """One release of `skellam`."""
        bound = self.rounded_squared_bound
        l2_sensitivity = math.sqrt(bound)
        return SkellamEvent(
            dim=self.dim,
            aggregate_noise_variance=noise_variance,
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=min(math.sqrt(self.dim) * l2_sensitivity, float(bound)),
        )

    def ddgauss(self, noise_variance: Fraction) -> DistributedDiscreteGaussianEvent:
        """One release of `ddgauss`, n shares."""
        bound = self.rounded_squared_bound
        l2_sensitivity = math.sqrt(bound)
        return DistributedDiscreteGaussianEvent(
            dim=self.dim,
            num_noise_shares=self.clients,
            local_noise_variance=noise_variance / self.clients,
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=min(math.sqrt(self.dim) * l2_sensitivity, float(bound)),
        )

    def smm(
        self, noise_variance: Fraction, *, linf_bound: int = 1
    ) -> SkellamMixtureClippedEvent:
        """One release of `smm`; Δ∞ = 1 makes the weakest demand on the noise."""
        return SkellamMixtureClippedEvent(
            dim=self.dim,
            aggregate_noise_variance=noise_variance,
            mixture_norm_bound=self.squared_steps,
            linf_bound=linf_bound,
        )

    def mixture(self, noise_variance: Fraction) -> NoiseEvent:
        """One release of the default mechanism, as the mechanism itself states it."""
        mechanism = make_mechanism(
            MechanismParameters(
                mechanism="skellam-mixture",
                dim=self.dim,
                l2_clip=self.radius,
                scale_factor=self.scale_factor,
                modulus=_ANY_MODULUS,
                noise_rule=NoiseRule(
                    counted_variance=Fraction(self.clients - 1),
                    min_survivors=self.clients,
                ),
                num_clients=self.clients,
            )
        )
        return mechanism.event_with_noise(noise_variance)

    def binomial(self, noise_variance: Fraction) -> BinomialEvent:
        """One release of cpSGD after unconditional rounding, worst-case norms."""
        l2_sensitivity = self.scale_factor * self.radius + math.sqrt(self.dim)
        return BinomialEvent(
            dim=self.dim,
            num_trials=math.ceil(4 * noise_variance),
            l2_sensitivity=l2_sensitivity,
            l1_sensitivity=math.sqrt(self.dim) * l2_sensitivity,
            linf_sensitivity=self._largest_rounded_coordinate,
        )

    @property
    def _largest_rounded_coordinate(self) -> int:
        """Eight deviations of a rotated coordinate, or the norm, rounded up."""
        norm = self.scale_factor * self.radius
        return max(1, math.ceil(min(norm, 8.0 * norm / math.sqrt(self.dim))))

    def release(self, accountant: str, noise_variance: Fraction) -> NoiseEvent:
        """The release that an accountant is shown for in the figures."""
        builders: dict[str, Callable[[Fraction], NoiseEvent]] = {
            "skellam-paper": self.skellam,
            "skellam-gdp": self.skellam,
            "skellam-rdp": self.skellam,
            "ddgauss-paper": self.ddgauss,
            "smm-paper": self.smm,
            "cpsgd-recalled": self.binomial,
            "mixture-contour": self.mixture,
            "mixture-rdp": self.mixture,
            "mixture-pld": self.mixture,
        }
        return builders[accountant](noise_variance)

    def noise(
        self, accountant: str, budget: Budget, *, gaussian_variance: float
    ) -> Fraction:
        """Calibrate.

        Args:
            accountant: Name of the accountant, which decides the mechanism too.
            budget: What may be spent.
            gaussian_variance: What a central Gaussian needs for the budget per squared
                L2 sensitivity; no mechanism needs less.

        Returns:
            The least aggregate variance that the accountant accepts.
        """

        def build(variance: Fraction) -> PrivacyEvent:
            return budget.releases(self.release(accountant, variance))

        rounded = accountant.startswith(("skellam", "ddgauss", "cpsgd"))
        norm = self.rounded_squared_bound if rounded else self.squared_steps
        least = Fraction(gaussian_variance * norm) * _SLIGHTLY_LESS
        return calibrate(
            build,
            accountant=budget.accountant(accountant),
            epsilon=budget.epsilon,
            delta=budget.delta,
            adversary=budget.adversary,
            bracket=(least, least * 2**40),
        )

    def suffices(
        self, accountant: str, budget: Budget, noise_variance: Fraction
    ) -> bool:
        """Whether an accountant accepts a variance: one evaluation, no search."""
        name = budget.accountant(accountant)
        account = make_accountant(name, adversary=budget.adversary)
        account.compose(budget.releases(self.release(accountant, noise_variance)))
        return account.delta(budget.epsilon) <= budget.delta

    def stated_epsilon(
        self, accountant: str, delta: float, release: NoiseEvent
    ) -> float:
        """What an accountant states for one release; infinite without a theorem."""
        account = make_accountant(accountant, adversary=Adversary.SERVER)
        try:
            return account.compose(release).epsilon(delta)
        except TheoremNotApplicableError:
            return math.inf


def gaussian_variance(budget: Budget, radius: float) -> float:
    """Variance of the central analytic Gaussian, one release, caller's units."""
    return analytic_gaussian_stddev(budget.epsilon, budget.delta, radius) ** 2


def smm_formula_only(squared_steps: float, budget: Budget) -> float:
    """Evaluate the published mixture formula without the conditions of its theorem.

    No privacy follows from this number. The publication's figures use it at scales
    where the conditions fail.

    Args:
        squared_steps: The bound c, grid steps squared.
        budget: ε and δ of one release without sampling.

    Returns:
        The least variance over `PUBLISHED_ORDERS`, grid steps squared.

    Source:
        [Bao22] Corollary 1 and Lemma 3, Eq. (3) ignored.
    """
    return min(_at_order(order, squared_steps, budget) for order in PUBLISHED_ORDERS)


def smm_linf_bound(setting: Setting, budget: Budget, noise_variance: Fraction) -> int:
    """Choose Δ∞ as the publication does, but an integer.

    Args:
        setting: Vectors and scale.
        budget: ε and δ of one release.
        noise_variance: Aggregate variance, grid steps squared.

    Returns:
        The largest integer that Eq. (3) admits at the best order, or 1 where it admits
        none; the theorem then does not hold at that order.
    """
    order = smm_order(setting.squared_steps, budget)
    return max(1, largest_linf_bound(order, noise_variance=float(noise_variance)))


def smm_order(squared_steps: float, budget: Budget) -> int:
    """The order at which `smm_formula_only` takes its minimum."""
    return min(
        PUBLISHED_ORDERS, key=lambda order: _at_order(order, squared_steps, budget)
    )


def largest_admitted_bound(order: int, noise_variance: float) -> float:
    """The real-valued Δ∞ at the edge of Eq. (3) of [Bao22]; below 1 admits nothing.

    Args:
        order: Rényi order α.
        noise_variance: Aggregate variance, grid steps squared.
    """
    quadratic = 10.9 * order * order - 1.8 * order - 9.1
    return min(
        noise_variance / (order - 1), math.sqrt(2.0 * noise_variance / quadratic)
    )


def _at_order(order: int, squared_steps: float, budget: Budget) -> float:
    conversion = math.log(1.0 / budget.delta) - math.log(order)
    conversion += (order - 1) * math.log1p(-1.0 / order)
    allowed = budget.epsilon - conversion / (order - 1)
    if allowed <= 0.0:
        return math.inf
    return (0.6 * order + 0.5) * squared_steps / allowed
