"""The closed form of one release behind one coin, against sums over finite laws."""

import itertools
import math

import pytest

from dpnoise.accounting.conversion import epsilon_before, epsilon_behind


def divergence(one, other, epsilon):
    factor = math.exp(epsilon)
    return math.fsum(max(0.0, a - factor * b) for a, b in zip(one, other, strict=True))


LAWS = tuple(
    tuple(weight / sum(weights) for weight in weights)
    for weights in itertools.islice(
        itertools.product((1e-6, 0.03, 1.0, 5.0), repeat=4), 0, None, 7
    )
)


@pytest.mark.parametrize("rate", [0.9, 0.3, 0.02])
def test_the_bound_holds_in_both_directions_and_is_tight_in_one(rate):
    for shown, hidden in itertools.combinations(LAWS, 2):
        mixed = [
            rate * a + (1.0 - rate) * b for a, b in zip(shown, hidden, strict=True)
        ]
        for epsilon in (0.0, 0.1, 1.5):
            behind = epsilon_behind(epsilon, rate)
            forward = divergence(shown, hidden, behind)
            both = max(forward, divergence(hidden, shown, behind))
            assert divergence(mixed, hidden, epsilon) == pytest.approx(
                rate * forward, rel=1e-9, abs=1e-15
            )
            assert divergence(hidden, mixed, epsilon) <= rate * both + 1e-15


@pytest.mark.parametrize("rate", [1.0, 0.999, 0.5, 1e-3, 1e-9])
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-3, 0.999, 1.0, 7.0, 800.0])
def test_the_two_functions_are_inverses_with_conservative_rounding(epsilon, rate):
    behind = epsilon_behind(epsilon, rate)
    assert behind >= epsilon
    back = epsilon_before(behind, rate)
    assert back == pytest.approx(epsilon, rel=1e-9, abs=1e-12)
    if epsilon < 500.0:
        assert math.expm1(behind) <= math.expm1(epsilon) / rate * (1.0 + 1e-12)


def test_an_infinite_loss_stays_infinite():
    assert epsilon_before(math.inf, 0.01) == math.inf
