"""Whether one more task fits, against composition by code that shares nothing."""

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.accounting.accountant import GaussianLoss
from dpnoise.accounting.cross_task import (
    LossLimit,
    Rule,
    TaskLoss,
    fits,
    gaussian_loss,
    required_change,
    spent,
)
from dpnoise.events import (
    Adversary,
    DiscreteGaussianEvent,
    Repeated,
    SecretlySelected,
    SkellamEvent,
    SkellamMixtureEvent,
)

NORMAL = NormalDist()
LIMIT = LossLimit(1.0, 1e-5)


def hockey_stick(epsilon, shift):
    """Of N(shift, 1) against N(0, 1), in the words of a textbook."""
    first = NORMAL.cdf(shift / 2 - epsilon / shift)
    return first - math.exp(epsilon) * NORMAL.cdf(-shift / 2 - epsilon / shift)


def epsilon_of(shift, delta):
    low, high = 0.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        if hockey_stick(middle, shift) <= delta:
            high = middle
        else:
            low = middle
    return high


def shift_of(epsilon, delta):
    low, high = 0.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        if hockey_stick(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def gaussian(epsilon, delta, *, distance=0.0, added=0.0):
    shift = shift_of(epsilon, delta)
    return TaskLoss(
        epsilon=epsilon,
        delta=delta,
        gaussian=GaussianLoss(shift, distance),
        added_delta=added,
    )


def plain(epsilon, delta):
    return TaskLoss(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    ("losses", "is_within"),
    [
        ([plain(1.0, 1e-5)], True),
        ([plain(1.0001, 1e-5)], False),
        ([plain(1.0, 1.0001e-5)], False),
        ([plain(0.5, 5e-6), plain(0.5, 5e-6)], True),
        ([plain(0.5, 5e-6), plain(0.5001, 5e-6)], False),
        ([plain(0.5, 5e-6), plain(0.5, 5.001e-6)], False),
        ([plain(0.1, 1e-6)] * 10, True),
        ([plain(0.1, 1e-6)] * 11, False),
    ],
)
def test_losses_without_a_gaussian_bound_add_up(losses, is_within):
    assert fits(losses, LIMIT) is is_within
    assert {each.rule for each in spent(losses, LIMIT)} == {Rule.BASIC}


@pytest.mark.parametrize("epsilons", [(0.7, 0.5), (0.3, 0.3, 0.3, 0.3), (0.6, 0.1)])
def test_gaussian_losses_are_composed_as_one_gaussian(epsilons):
    losses = [gaussian(each, 1e-5) for each in epsilons]
    found = next(each for each in spent(losses, LIMIT) if each.rule is Rule.GAUSSIAN)
    shift = math.sqrt(sum(each.gaussian.shift**2 for each in losses))
    assert found.epsilon == pytest.approx(epsilon_of(shift, 0.5e-5), rel=1e-6)
    assert found.epsilon >= epsilon_of(shift, 0.5e-5) * (1 - 1e-9)
    assert found.epsilon < sum(epsilons)


def test_the_part_outside_the_gaussian_bound_is_charged_to_delta():
    losses = [gaussian(0.4, 1e-6, distance=1e-8), gaussian(0.4, 1e-6, added=1e-6)]
    found = next(each for each in spent(losses, LIMIT) if each.rule is Rule.GAUSSIAN)
    shift = math.sqrt(sum(each.gaussian.shift**2 for each in losses))
    charged = 1e-6 + (1 + math.exp(found.epsilon)) * 1e-8
    assert found.epsilon == pytest.approx(epsilon_of(shift, 0.5e-5 - charged), rel=1e-6)
    over = [losses[0], gaussian(0.01, 1e-5, added=6e-6)]
    assert not fits(over, LIMIT)


def test_one_loss_without_a_gaussian_bound_leaves_only_the_basic_sum():
    losses = [gaussian(0.6, 1e-6), gaussian(0.6, 1e-6)]
    assert fits(losses, LIMIT)
    assert not fits([*losses, plain(1e-9, 0.0)], LIMIT)


def dearest_second_task(first, limit, accepts, losses):
    """Return delta at the limit's epsilon, for who chooses the second by the first.

    First a Gaussian release is seen, with privacy loss x; then comes whichever second
    task is accepted and tells the two worlds apart best: one that fails openly with
    probability delta, or a Gaussian one.
    """
    steps, total = 40_000, 0.0
    shift = first.gaussian.shift
    offered = [each for each in losses if accepts([first, each], limit)]
    for step in range(steps):
        z = -9 + 18 * (step + 0.5) / steps
        loss = shift * z + shift**2 / 2
        left = limit.epsilon - loss
        gains = [max(0.0, 1 - math.exp(left))]
        for each in offered:
            if each.gaussian is None:
                open_failure = each.delta
                gains.append(open_failure + (1 - open_failure) * gains[0])
            elif left > 0:
                gains.append(hockey_stick(left, each.gaussian.shift))
            else:
                gains.append(
                    1
                    - math.exp(left)
                    + math.exp(left) * hockey_stick(-left, each.gaussian.shift)
                )
        total += 18 / steps * NORMAL.pdf(z) * max(gains)
    return total


def test_an_adaptive_choice_of_rule_needs_half_of_delta_for_each():
    """A counterexample to the better of two filters, and what the halves are for."""
    limit = LossLimit(1.0, 1e-2)
    first = gaussian(0.6, 1e-4)
    rest = [plain(0.0, each * 1e-2 - first.delta) for each in (0.5, 1.0)]
    for delta in (1e-2, 0.5e-2):
        left = shift_of(1.0, delta) ** 2 - first.gaussian.shift**2
        second = math.sqrt(left) * (1 - 1e-6)
        rest.append(
            TaskLoss(
                epsilon=epsilon_of(second, 1e-4),
                delta=1e-4,
                gaussian=GaussianLoss(second, 0.0),
            )
        )

    def better_of_two_filters(losses, limit):
        basic = spent(losses, limit)[0]
        shift = math.sqrt(
            sum(
                math.inf if each.gaussian is None else each.gaussian.shift**2
                for each in losses
            )
        )
        return (basic.epsilon <= limit.epsilon and basic.delta <= limit.delta) or (
            math.isfinite(shift) and epsilon_of(shift, limit.delta) <= limit.epsilon
        )

    found = dearest_second_task(first, limit, fits, rest)
    assert 0.5e-2 < found <= 1e-2
    assert dearest_second_task(first, limit, better_of_two_filters, rest) > 1.3e-2


@pytest.mark.parametrize(
    "losses",
    [
        [plain(0.4, 1e-6)],
        [gaussian(0.4, 1e-6)],
        [gaussian(0.4, 1e-6), gaussian(0.2, 1e-6)],
        [gaussian(0.4, 1e-6), plain(0.2, 1e-6)],
    ],
)
@pytest.mark.parametrize("kind", [plain, gaussian])
def test_the_required_change_fits_and_is_minimal(losses, kind):
    refused = kind(1.5, 1e-6)
    assert not fits([*losses, refused], LIMIT)
    room = required_change(refused, losses, LIMIT)
    assert fits([*losses, kind(room.epsilon * 0.999, 1e-6)], LIMIT)
    assert not fits([*losses, kind(room.epsilon * 1.001, 1e-6)], LIMIT)
    assert room.needed.delta == LIMIT.delta
    assert fits([*losses, refused], room.needed)
    too_little = LossLimit(room.needed.epsilon * 0.999, LIMIT.delta)
    assert not fits([*losses, refused], too_little)


def test_the_required_change_names_delta_if_delta_is_too_small():
    refused = plain(0.1, 2e-5)
    room = required_change(refused, [plain(0.1, 1e-6)], LIMIT)
    assert room.epsilon == 0.0
    assert room.needed == LossLimit(LIMIT.epsilon, pytest.approx(2.1e-5))
    assert fits([plain(0.1, 1e-6), refused], room.needed)
    halved = required_change(refused, [gaussian(0.1, 1e-6)], LIMIT)
    assert halved.needed.delta == pytest.approx(4.2e-5)
    # No delta is enough for what epsilons come to.
    both = required_change(plain(0.9, 1e-6), [plain(0.9, 4e-7)], LossLimit(1.0, 1e-6))
    assert both.needed == LossLimit(1.8, pytest.approx(1.4e-6))
    # Three times 1e-5 is a bit more than 3e-5 in floats, and no reason for more.
    thrice = required_change(
        plain(0.9, 1e-5), [plain(0.9, 1e-5), plain(0.9, 1e-5)], LossLimit(1.0, 3e-5)
    )
    assert thrice.needed == LossLimit(pytest.approx(2.7), 3e-5)
    assert required_change(plain(0.9, 0.7), [plain(0.1, 0.3)], LIMIT).needed is None


def test_the_named_limit_admits_what_was_rejected():
    rng, named = np.random.default_rng(2027), 0  # noqa: TID251 - cases, no noise
    for _ in range(400):
        losses = [
            (plain, gaussian)[rng.integers(2)](
                float(rng.choice((0.05, 0.3, 0.9, 1.7))),
                float(rng.choice((1e-7, 4e-7, 1e-6, 1e-5))),
            )
            for _ in range(rng.integers(1, 5))
        ]
        limit = LossLimit(
            float(rng.choice((0.5, 1.0, 2.0))), float(rng.choice((1e-7, 1e-6, 3e-5)))
        )
        if fits(losses, limit):
            continue
        *beside, refused = losses
        needed = required_change(refused, beside, limit).needed
        assert fits(losses, needed), (losses, limit, needed)
        assert needed.delta >= limit.delta
        assert needed.epsilon >= limit.epsilon
        assert needed != limit
        named += 1
    assert named > 100


SKELLAM = SkellamEvent(
    dim=100,
    aggregate_noise_variance=Fraction(400),
    l2_sensitivity=10.0,
    l1_sensitivity=100.0,
)
MIXTURE = SkellamMixtureEvent(
    dim=256,
    aggregate_noise_variance=Fraction(1000),
    l2_clip_squared_steps=256.0,
    linf_bound=4.0,
)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (SKELLAM, "skellam-gdp"),
        (
            DiscreteGaussianEvent(
                dim=9, noise_variance=Fraction(90), l2_sensitivity=5.0
            ),
            "skellam-gdp",
        ),
        (MIXTURE, "mixture-gdp"),
    ],
)
@pytest.mark.parametrize("times", [1, 7])
def test_the_gaussian_loss_of_an_event_equals_that_of_its_accountant(
    event, name, times
):
    loss = gaussian_loss(Repeated(event, times), delta=1e-6)
    account = make_accountant(name, adversary=Adversary.SERVER)
    stated = account.compose(Repeated(event, times)).epsilon(1e-6)
    (_, found) = spent(
        [TaskLoss(epsilon=9.0, delta=1e-6, gaussian=loss)], LossLimit(1.0, 1e-6)
    )
    assert found.epsilon == pytest.approx(stated, rel=1e-6)
    assert found.epsilon >= stated * (1 - 1e-12)


def test_a_release_with_selection_has_no_gaussian_bound():
    assert gaussian_loss(SecretlySelected(SKELLAM, Fraction(1, 2)), delta=1e-6) is None
    assert gaussian_loss(SecretlySelected(MIXTURE, Fraction(1, 2)), delta=1e-6) is None
