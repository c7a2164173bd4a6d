"""Plans asked backwards agree with plans."""

import math
from fractions import Fraction

import pytest

from dpnoise.bench import budget, clients
from dpnoise.bench.inverse import _threshold
from dpnoise.errors import ParameterError
from dpnoise.events import Adversary
from dpnoise.mechanisms.noise_share import MAX_CLIENTS
from dpnoise.planning import plan

COMMON = {"dimension": 64, "l2_clip": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("skellam", {}),
        ("skellam", {"steps": 10, "min_survivors": 16}),
        ("skellam-mixture", {"accountant": "mixture-gdp"}),
        ("gaussian", {}),
    ],
)
def test_the_budget_computed_from_planned_noise_is_the_planned_one(name, settings):
    made = plan(mechanism=name, clients=20, epsilon=1.0, **COMMON, **settings)
    asked = {
        "mechanism": name,
        "scale_factor": made.parameters.scale_factor,
        "clients": 20,
        "settings": settings,
    }
    stated = budget(noise_variance=made.noise_variance, **asked, **COMMON)
    assert 0.998 < stated.epsilon <= 1.0
    assert stated.accountant == made.accountant
    central = name == "gaussian"
    whom = Adversary.MODEL_READER if central else Adversary.SERVER
    assert stated.adversary is whom
    less = budget(noise_variance=made.noise_variance / 2, **asked, **COMMON)
    assert less.epsilon > 1.3 * stated.epsilon


def test_the_smallest_epsilon_is_returned_unless_an_accountant_is_named():
    asked = {"noise_variance": 40.0, "scale_factor": 2.0, "clients": 20, **COMMON}
    least = budget(**asked)
    for name in ("mixture-gdp", "mixture-contour"):
        named = budget(**asked, settings={"accountant": name})
        assert named.accountant == name
        assert least.epsilon <= named.epsilon


def test_a_mechanism_with_a_bound_tied_to_its_noise_requires_the_bound():
    asked = {"noise_variance": 4000, "scale_factor": 8.0, "clients": 20, **COMMON}
    with pytest.raises(ParameterError) as caught:
        budget(mechanism="smm", **asked)
    assert caught.value.parameter == "linf_bound"
    stated = budget(mechanism="smm", settings={"linf_bound": Fraction(2)}, **asked)
    assert stated.accountant == "smm-paper"
    assert math.isfinite(stated.epsilon)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_variance_is_rejected_by_name(variance):
    asked = {"noise_variance": variance, "scale_factor": 2.0, "clients": 20, **COMMON}
    with pytest.raises(ParameterError) as caught:
        budget(**asked)
    assert caught.value.parameter == "noise_variance"


@pytest.mark.parametrize("loss_fraction", [0.0, 0.2])
def test_the_cohort_is_the_smallest_that_reaches_the_target(loss_fraction):
    asked = {"mechanism": "skellam", "epsilon": 1.0, **COMMON}
    made = clients(mean_error=0.02, loss_fraction=loss_fraction, **asked)
    number = made.request.clients
    assert 150 < number < 300
    for each, reaches in ((number, True), (number - 1, False)):
        planned = plan(
            clients=each, min_survivors=each - int(loss_fraction * each), **asked
        )
        assert (math.sqrt(planned.estimate_mse) / each <= 0.02) is reaches


@pytest.mark.parametrize("start", [2, 3, 10, 64, 500, 1000])
def test_the_search_finds_the_first_cohort_that_reaches_the_target(start, monkeypatch):
    monkeypatch.setattr("dpnoise.bench.inverse.MAX_CLIENTS", 1000)
    for first in (2, 3, 9, 10, 11, 63, 64, 66, 499, 500, 507, 999, 1000):
        asked = []

        def excess(number, first=first, asked=asked):
            asked.append(number)
            return first / number * (0.97 if number >= first else 1.03)

        assert _threshold(excess, start=start) == first
        assert all(2 <= number <= 1000 for number in asked)
        assert len(set(asked)) <= 12
    for nowhere in (lambda _: math.inf, lambda _: 1.5, lambda number: 2e3 / number):
        assert _threshold(nowhere, start=start) == 1000


def test_an_unreachable_target_is_detected_after_a_few_plans():
    asked = []

    def excess(number):
        asked.append(number)
        return 1e12 / number + 1e9 / math.sqrt(number)

    assert _threshold(excess, start=9000) == MAX_CLIENTS
    assert set(asked) == {9000, MAX_CLIENTS}
    # Rounding may leave every mean with the same error.
    asked.clear()
    assert _threshold(lambda n: asked.append(n) or 1.8 + 9.0 / n, start=100) == (
        MAX_CLIENTS
    )
    assert len(set(asked)) <= 8


def test_a_cohort_without_a_plan_is_followed_by_smaller_ones():
    """As where no modulus holds the sum of as many as the target would need."""

    def excess(number):
        return math.inf if number > 50_000 else 1e4 * (40_000 / number) ** 4

    assert _threshold(excess, start=100) == MAX_CLIENTS

    def possible(number):
        return math.inf if number > 50_000 else (4e3 / number) ** 2

    assert _threshold(possible, start=100) == 4000


def test_the_smallest_cohort_has_two_clients():
    made = clients(mean_error=100.0, mechanism="gaussian", epsilon=1.0, **COMMON)
    assert made.request.clients == 2


def test_an_infeasible_target_is_rejected_with_the_nearest_value(monkeypatch):
    monkeypatch.setattr("dpnoise.bench.inverse.MAX_CLIENTS", 1000)
    asked = {"mechanism": "gaussian", "epsilon": 0.1, **COMMON}
    with pytest.raises(ParameterError, match="1000 clients") as caught:
        clients(mean_error=1e-9, **asked)
    nearest = float(caught.value.nearest)
    assert clients(mean_error=nearest, **asked).request.clients >= 998
    for change, parameter in (
        ({"loss_fraction": 1.0}, "loss_fraction"),
        ({"settings": {"min_survivors": 3}}, "settings"),
    ):
        with pytest.raises(ParameterError) as caught:
            clients(mean_error=1.0, **change, **asked)
        assert caught.value.parameter == parameter
