"""Conversions of Rényi and zCDP curves."""

import math

import numpy as np
import pytest

from dpnoise.accounting import make_accountant
from dpnoise.accounting.conversion import renyi_delta, renyi_epsilon
from dpnoise.accounting.gaussian import gaussian_epsilon
from dpnoise.events import Adversary, GaussianEvent

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 17.0, 40.0, 200.0])


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-1])
def test_epsilon_agrees_with_dp_accounting_at_equal_orders(delta):
    from dp_accounting.rdp import compute_epsilon  # noqa: PLC0415 - slow import, one test

    divergences = 0.03 * ORDERS
    theirs, _ = compute_epsilon(ORDERS, divergences, delta)
    assert renyi_epsilon(ORDERS, divergences, delta) == pytest.approx(theirs, rel=1e-12)


def test_delta_and_epsilon_are_inverse_to_each_other():
    order, divergence = np.array([9.0]), np.array([0.4])
    epsilon = renyi_epsilon(order, divergence, 1e-6)
    assert renyi_delta(order, divergence, epsilon) == pytest.approx(1e-6, rel=1e-10)


def test_an_order_without_a_theorem_is_never_chosen():
    divergences = np.where(ORDERS < 8.0, np.inf, 0.03 * ORDERS)
    covered = ORDERS >= 8.0
    assert renyi_epsilon(ORDERS, divergences, 1e-5) == renyi_epsilon(
        ORDERS[covered], divergences[covered], 1e-5
    )
    nothing = np.full_like(ORDERS, np.inf)
    assert renyi_epsilon(ORDERS, nothing, 1e-5) == np.inf
    assert renyi_delta(ORDERS, nothing, 1.0) == 1.0


def zcdp(rho):
    """An account of one Gaussian release with zero-concentrated privacy of rho."""
    account = make_accountant("zcdp", adversary=Adversary.SERVER)
    return account.compose(GaussianEvent(1, 1.0 / (2.0 * rho), 1.0))


def test_half_a_rho_costs_4_73_at_one_in_a_hundred_thousand():
    assert zcdp(0.5).epsilon(1e-5) == pytest.approx(4.728, abs=2e-3)


@pytest.mark.parametrize("rho", [1e-4, 0.05, 0.5, 8.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_exact_gaussian_is_below_the_conversion_and_that_below_the_simple_form(
    rho, delta
):
    exact = gaussian_epsilon(delta, noise_multiplier=(2.0 * rho) ** -0.5)
    converted = zcdp(rho).epsilon(delta)
    simple = rho + 2.0 * math.sqrt(-rho * math.log(delta))  # [BS16] Proposition 1.3
    assert exact <= converted * (1 + 1e-12)
    assert converted <= simple * (1 + 1e-3)


def test_the_ladder_of_orders_finds_the_infimum_over_a_dense_grid():
    orders = 1.0 + np.exp(np.linspace(-6.0, 8.0, 200_001))
    on_grid = renyi_delta(orders, 0.2 * orders, 2.0)
    assert on_grid * (1 - 1e-6) <= zcdp(0.2).delta(2.0) <= on_grid * 1.002
