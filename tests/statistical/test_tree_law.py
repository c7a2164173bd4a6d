"""What running sums over a tree of noise show of one member is no more than is stated.

Every entry of the vectors below is a tree of its own with one coordinate, so that the
draws of a few members are half a million trees. Who looks knows all other vectors and
sees all running sums, which carry the noise that the members themselves have drawn,
added, and taken off again.

Rule 1: a set S of outcomes is chosen beforehand: where the likelihood ratio of normal
        running sums exceeds e^ε, whose covariance is counted here from the digits of
        the steps. Whatever S, P(S) − e^ε·Q(S) is at most delta, P and Q being the
        worlds with the member's vectors and with zeros.
Rule 2: noise is symmetric, so Q is looked at from both sides. A difference of five
        standard errors is an alarm, one-sided: 2.9e-7 per comparison if the claim is
        exact. Seeds are fixed, so alarms repeat.
"""

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.accounting.tree import TreeRelease, account_for_tree
from dpnoise.events import Adversary, Repeated, SkellamEvent
from dpnoise.mechanisms.tree import TreeMember
from dpnoise.step_tree import StepTree

TREES = 1 << 19
STEPS, BRANCHING = 8, 2
MEMBERS, SHARE = 2, Fraction(128)
VARIANCE = MEMBERS * SHARE
EPSILON, STANDARD_ERRORS = 0.5, 5.0
# Steps of one member, from one of them to the next, and the length of its vector: as
# much as shows in the running sums as a Gaussian shifted by about one deviation shows.
PATTERNS = {
    "once": ((0,), STEPS, 9),
    "four times": ((0, 2, 4, 6), 2, 4),
    "always": (tuple(range(STEPS)), 1, 2),
}


def intervals(step):
    """The nodes of the first steps, from their binary digits, as (start, end)."""
    found, start = [], 0
    for width in (4, 4, 2, 1):  # no node is as long as all eight steps
        if start + width <= step:
            found.append((start, start + width))
            start += width
    return set(found)


# How many noisy nodes two running sums have in common.
COMMON = np.array(
    [
        [len(intervals(s) & intervals(t)) for t in range(1, STEPS + 1)]
        for s in range(1, STEPS + 1)
    ]
)


def drawn(members):
    """Noise of the running sums, shape (STEPS, TREES), as the members draw it."""
    tree = StepTree(STEPS, BRANCHING)
    sent = np.zeros((STEPS, TREES), np.int64)
    for who in range(members):
        seed = hashlib.sha256(b"%d" % who).digest()
        member = TreeMember(seed, tree=tree, dim=TREES, share_variance=SHARE)
        for step in range(1, STEPS + 1):
            sent[step - 1] += member.noise(step)
    return np.cumsum(sent, axis=0)


@pytest.fixture(name="noise", scope="module")
def _noise():
    return drawn(MEMBERS)


def shown(pattern):
    """What the member adds to each running sum."""
    taken, _, length = PATTERNS[pattern]
    return np.cumsum([length * (step in taken) for step in range(STEPS)])


def found(noise, shift, variance=VARIANCE):
    """Return P(S) − e^ε·Q(S) and its standard error."""
    weights = np.linalg.solve(float(variance) * COMMON, shift)
    ratio, half = weights @ noise, float(weights @ shift) / 2.0
    return difference(
        [each > EPSILON - half for each in (ratio, -ratio)],
        [each > EPSILON + half for each in (ratio, -ratio)],
    )


def difference(with_vectors, with_zeros):
    """As `found`, from what lies in S where noise is taken from either side."""
    each = sum(with_vectors) - math.exp(EPSILON) * sum(with_zeros)
    each = each / len(with_vectors)
    return float(each.mean()), float(each.std()) / math.sqrt(each.size)


def release(pattern):
    taken, separation, length = PATTERNS[pattern]
    return TreeRelease(
        SkellamEvent(1, VARIANCE, float(length), linf_sensitivity=length),
        StepTree(STEPS, BRANCHING),
        participations=len(taken),
        separation=separation,
    )


def claimed(made):
    return account_for_tree(made, adversary=Adversary.SERVER).delta(EPSILON)


def assert_no_more_than(claim, measured):
    delta, deviation = measured
    assert delta - STANDARD_ERRORS * deviation <= claim


@pytest.mark.parametrize("pattern", PATTERNS)
def test_running_sums_have_the_claimed_loss(noise, pattern):
    measured = found(noise, shown(pattern))
    assert_no_more_than(claimed(release(pattern)), measured)
    # Nor much less: a claim that nothing could break would pass as well.
    assert measured[0] + STANDARD_ERRORS * measured[1] >= claimed(release(pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_three_percent_less_noise_in_a_tree_is_detected(noise, pattern):
    made = release(pattern)
    more = replace(made.event, aggregate_noise_variance=VARIANCE / Fraction(97, 100))
    with pytest.raises(AssertionError):
        assert_no_more_than(
            claimed(replace(made, event=more)), found(noise, shown(pattern))
        )


def test_a_step_costs_more_than_a_single_release(noise):
    for pattern, (taken, _, _) in PATTERNS.items():
        each = make_accountant("skellam-gdp", adversary=Adversary.SERVER)
        each.compose(Repeated(release(pattern).event, len(taken)))
        with pytest.raises(AssertionError):
            assert_no_more_than(each.delta(EPSILON), found(noise, shown(pattern)))


def test_steps_in_a_row_cost_more_than_steps_apart(noise):
    apart, in_a_row = (replace(release("four times"), separation=s) for s in (2, 1))
    measured = found(noise, np.cumsum([4 * (step < 4) for step in range(STEPS)]))
    with pytest.raises(AssertionError):
        assert_no_more_than(claimed(apart), measured)
    assert_no_more_than(claimed(in_a_row), measured)


def test_steps_can_be_chosen_adaptively(noise):
    """The second of two steps follows the first at once, or not, by the first sum."""
    at_once, later = (
        np.cumsum([7 * (step in taken) for step in range(STEPS)])
        for taken in ((0, 1), (0, 4))
    )
    assert at_once[0] == later[0]

    def ratio(sums):
        """Logarithm of the ratio of densities: what was added is seen in the sums."""
        added = np.where(sums[0] > 0, at_once[:, None], later[:, None])
        weights = np.linalg.solve(float(VARIANCE) * COMMON, added)
        return np.sum(weights * (sums - added / 2.0), axis=0)

    def with_vectors(noise):
        chosen = noise[0] + at_once[0] > 0
        return noise + np.where(chosen, at_once[:, None], later[:, None])

    both = noise, -noise
    measured = difference(
        [ratio(with_vectors(each)) > EPSILON for each in both],
        [ratio(each) > EPSILON for each in both],
    )
    made = replace(
        release("once"),
        event=SkellamEvent(1, VARIANCE, 7.0, linf_sensitivity=7),
        participations=2,
        separation=1,
    )
    assert_no_more_than(claimed(made), measured)
    # As if the steps had been agreed on to be apart.
    with pytest.raises(AssertionError):
        assert_no_more_than(claimed(replace(made, separation=4)), measured)


def test_a_member_with_a_known_seed_is_not_counted():
    left = drawn(MEMBERS - 1)
    for pattern in PATTERNS:
        made, measured = release(pattern), found(left, shown(pattern), SHARE)
        with pytest.raises(AssertionError):
            assert_no_more_than(claimed(made), measured)
        less = replace(made.event, aggregate_noise_variance=SHARE)
        assert_no_more_than(claimed(replace(made, event=less)), measured)
