"""The total loss of several tasks on the same data, and whether one more task fits.

* A task's whole loss is stated when its data are first given to it, and never shrinks.
  It is (epsilon, delta) and, where theorems give one, the Gaussian release that
  dominates it.
* `BASIC` adds epsilons and deltas. `GAUSSIAN`, where every task has a Gaussian release,
  takes the root of the sum of their squared shifts, adds distances, and converts once.
* Tasks run side by side. The operator who offers the next task has seen what the
  earlier ones released. Each rule by itself is a filter: while its total stays within
  the limit, the limit holds, however the next task is chosen. Both sums only grow.
* **The better of two filters is not a filter.** An adversary could use one rule if the
  first release looks harmless, and the other rule otherwise. That doubles delta at most
  (a third more in an example of the tests), so the rules share delta. From the second
  task on, each rule has half of delta if the first task's loss is Gaussian. If it is
  not, `GAUSSIAN` never applies, and `BASIC` has all of delta. A single task may use all
  of it.

Theorem (ours, from [RRUV16], [ST22] and [HST23]). A client that gives its data only to
tasks that `fits` accepts loses at most (epsilon, delta) of the limit to all together.

Proof. The hockey-stick divergence at e^epsilon adds up over transcripts. If the first
loss has no Gaussian, only `BASIC` accepts. Otherwise each transcript with two tasks or
more ends within one of the rules at delta/2. Sums only grow, so it is also a transcript
of the process that follows that rule alone and stops before leaving it. Those of one
rule add up to at most delta/2. A transcript with one task that fits a rule at delta/2
belongs to the same process. If the first task fits neither at delta/2, no second one is
accepted, and it fits alone at delta. What the first task is does not depend on any
release about the data.

Source:
    [RRUV16] (recalled) for basic composition when budgets are chosen from outcomes.
    `BASIC` counts whole tasks, which interleave: [HST23] carries every filter for
    (epsilon, delta) over to that. `GAUSSIAN` needs no theorem about concurrency. All
    releases of all tasks are one adaptive sequence, whose squared shifts each task has
    reserved. [ST22] adds up such a sequence.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

from dpnoise.accounting.accountant import GaussianLoss
from dpnoise.accounting.catalogue import closed_forms, make_accountant
from dpnoise.accounting.statement import Proof, Status
from dpnoise.errors import TheoremNotApplicableError
from dpnoise.events import Adversary, Composed, GaussianEvent, PrivacyEvent
from dpnoise.searches import halve

GAUSSIAN_STATUS: Final = Status.CERTIFIED
"""How the Gaussian releases of all closed forms are known."""

GAUSSIAN_PROOF: Final = Proof.OWN
"""Status of the proofs that they rest on."""

# Ten times 1e-6 is not 1e-5 in floats: what people write with a few digits must fit.
_LAST_DIGITS: Final = 1.0 + 2.0**-40
_BISECTION_STEPS: Final = 60


@unique
class Rule(StrEnum):
    """How losses are added up."""

    BASIC = "basic"
    GAUSSIAN = "gaussian"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoss:
    """What one task costs, over all releases that it may make.

    Attributes:
        epsilon: At least 0.
        delta: That goes with it, in [0, 1).
        gaussian: A Gaussian release that dominates them all; None where none is known.
        added_delta: Part of delta that is the chance of something else, such as a graph
            that is cut, and that no Gaussian release covers.
    """

    epsilon: float
    delta: float
    gaussian: GaussianLoss | None = None
    added_delta: float = 0.0


@dataclass(frozen=True, slots=True)
class LossLimit:
    """What all tasks together may cost.

    Attributes:
        epsilon: Above 0.
        delta: In (0, 1).
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """What losses add up to by one rule.

    Attributes:
        rule: How they were added.
        epsilon: Of all together.
        delta: What this takes of the limit's.
        share: What the rule may take of it.
    """

    rule: Rule
    epsilon: float
    delta: float
    share: float

    def is_within(self, limit: LossLimit) -> bool:
        """Return whether this rule alone says that the limit holds."""
        return self.epsilon <= limit.epsilon * _LAST_DIGITS and self.has_delta()

    def has_delta(self) -> bool:
        """Return whether its part of the limit's delta is enough for this rule."""
        return self.delta <= self.share * _LAST_DIGITS


@dataclass(frozen=True, slots=True)
class RequiredChange:
    """What would have to change for a task to fit.

    Attributes:
        epsilon: About the largest epsilon that the task may have at its delta; 0.0 for
            none.
        needed: A limit into which it fits as it is. It has the least epsilon at the
            delta that is set, if that has room. If not, it has the least delta at which
            deltas add up. None where no limit takes it.
    """

    epsilon: float
    needed: LossLimit | None


def gaussian_loss(event: PrivacyEvent, *, delta: float) -> GaussianLoss | None:
    """Return a Gaussian release that dominates an event against the server.

    Args:
        event: All releases of a task.
        delta: Failure probability in (0, 1) for which it should be the best one.

    Returns:
        The least that a certified theorem gives; None where none covers the event.
    """
    found: list[GaussianLoss] = []
    for name in closed_forms(event):  # asking them costs next to nothing
        account = make_accountant(name, adversary=Adversary.SERVER)
        try:
            loss = account.compose(event).gaussian_loss(delta)
        except TheoremNotApplicableError:
            continue
        if loss is not None and loss.distance < delta:
            found.append(loss)
    return min(found, key=lambda each: each.shift, default=None)


def spent(losses: Sequence[TaskLoss], limit: LossLimit) -> tuple[BudgetSpent, ...]:
    """Add up losses by every rule that covers them.

    Args:
        losses: Of all tasks, in the order in which they were begun.
        limit: Of which both rules take their parts.

    Returns:
        The basic sum, and where every loss is Gaussian, theirs.
    """
    share = limit.delta
    if len(losses) > 1 and losses[0].gaussian is not None:
        share /= 2.0
    basic = BudgetSpent(
        Rule.BASIC,
        math.fsum(each.epsilon for each in losses),
        math.fsum(each.delta for each in losses),
        share,
    )
    gaussians = [each.gaussian for each in losses if each.gaussian is not None]
    if not losses or len(gaussians) < len(losses):
        return (basic,)
    added = math.fsum(each.added_delta for each in losses)
    epsilon = _epsilon(gaussians, share - added)
    return basic, BudgetSpent(Rule.GAUSSIAN, epsilon, share, share)


def fits(losses: Sequence[TaskLoss], limit: LossLimit) -> bool:
    """Return whether all losses together stay within a limit."""
    return any(each.is_within(limit) for each in spent(losses, limit))


def required_change(
    loss: TaskLoss, beside: Sequence[TaskLoss], limit: LossLimit
) -> RequiredChange:
    """Say what would have to change for a task that does not fit.

    Args:
        loss: Of the task.
        beside: Of those before it.
        limit: Of all.
    """
    together = spent((*beside, loss), limit)
    basic = together[0]
    epsilons = [0.0]
    if basic.has_delta():
        taken = math.fsum(each.epsilon for each in beside)
        epsilons.append(limit.epsilon - taken)
    if len(together) > 1 and loss.gaussian is not None:
        epsilons.append(_max_gaussian_epsilon(loss, beside, limit))
    return RequiredChange(max(epsilons), _raised_limit((*beside, loss), limit))


def _raised_limit(losses: Sequence[TaskLoss], limit: LossLimit) -> LossLimit | None:
    """Raise a limit to one that takes all losses: delta only where it must be."""
    together = spent(losses, limit)
    enough = [
        each.epsilon
        for each in together
        if each.has_delta() and math.isfinite(each.epsilon)
    ]
    if enough:
        return LossLimit(max(limit.epsilon, min(enough)), limit.delta)
    basic = together[0]
    delta = basic.delta * (limit.delta / basic.share)
    if delta >= 1.0 or not math.isfinite(basic.epsilon):
        return None
    return _raised_limit(losses, LossLimit(limit.epsilon, delta))


def _max_gaussian_epsilon(
    loss: TaskLoss, beside: Sequence[TaskLoss], limit: LossLimit
) -> float:
    """Return the epsilon that a Gaussian of the largest shift that fits has alone."""
    distance = 0.0 if loss.gaussian is None else loss.gaussian.distance

    def is_too_much(shift: float) -> bool:
        tried = TaskLoss(
            epsilon=math.inf,
            delta=loss.delta,
            gaussian=GaussianLoss(shift, distance),
            added_delta=loss.added_delta,
        )
        return not fits((*beside, tried), limit)

    # beyond a shift of 60, no release is private at any limit
    shift, _ = halve(is_too_much, 0.0, 60.0, steps=_BISECTION_STEPS)
    return _epsilon([GaussianLoss(shift, 0.0)], loss.delta - loss.added_delta)


def _epsilon(gaussians: Iterable[GaussianLoss], delta: float) -> float:
    """Return the epsilon of Gaussian releases together."""
    if delta <= 0.0:
        return math.inf
    releases = Composed(
        tuple(
            GaussianEvent(
                dim=1,
                noise_variance=1.0,
                l2_sensitivity=each.shift,
                sampler_distance=each.distance,
            )
            for each in gaussians
        )
    )
    account = make_accountant(closed_forms(releases)[0], adversary=Adversary.SERVER)
    return account.compose(releases).epsilon(delta)
