"""A rule that a client in any language can check: two closed forms, no tables.

* Statement (a) is that of `mixture-gdp`; statement (b) adds Rényi divergences from
  `rounded_moments` and is made where no coordinate exceeds one grid step. Both are
  theorems, and the lesser of the two is stated.
* The whole rule is written down, for those who implement it, in
  `docs/rule-for-small-clients.md`; vectors come with `secagg.conformance`.
* Its price is up to a tenth of epsilon, at a few grid steps per unit, and next to
  nothing on fine grids.

It covers one kind of release only, without selection.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.conversion import renyi_delta, renyi_epsilon
from dpnoise.accounting.statement import Proof, Status
from dpnoise.accounting.tradeoff.mixture_gdp import MixtureGDPAccountant
from dpnoise.accounting.tradeoff.rounded_moments import worst_quotients
from dpnoise.accounting.tradeoff.unit_shift import skellam_shift_closed_form
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import (
    Adjacency,
    NoiseEvent,
    Repeated,
    SkellamMixtureEvent,
)
from dpnoise.floats import FloatArray

# Last digits of another library's functions must not turn a yes into a no.
_ROUNDED_UP: Final = 1.0 + 1e-9


class MixtureSimpleAccountant(Accountant):
    """States the lesser of two closed forms for rounded vectors.

    Source:
        This project; proofs in `rounded_shift` and `rounded_moments`.
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
        return (
            "Clients enforce the bounds on the norm and on every coordinate.",
            "Every coordinate is rounded by an independent draw.",
        )

    def _details(self) -> Mapping[str, str]:
        return MappingProxyType({"orders": str(len(self._curve()[0]))})
