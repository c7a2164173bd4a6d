"""Figures for a person drawn at random: right where they hold, and where they do not.

Everything is compared with quadrature, enumeration or closed forms; nothing is drawn.
"""

import math

import mpmath
import numpy as np
import pytest
import scipy

from dpnoise.accounting.bayesian import (
    BayesianAccountant,
    Interval,
    Level,
    SampledGaussian,
    typical_epsilon,
    upper_mean,
)
from dpnoise.accounting.bayesian.accountant import ORDERS
from dpnoise.errors import InputError, ParameterError

DELTA = 1e-5


def accountant(**changed):
    settings = {
        "release_noise": SampledGaussian(4.0),
        "l2_clip": 1.0,
        "rounds": 10,
        "level": Level.CLIENT,
        "failure": 1e-6,
        "interval": Interval.ALL_CLIENTS,
    }
    return BayesianAccountant(**(settings | changed))


def spent(made, distances, rounds):
    for _ in range(rounds):
        made.add_release(distances)
    return made.statement(DELTA)


# --- costs ------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("order", [1, 4, 12])
def test_a_cost_is_the_divergence_of_the_mixture_by_quadrature(rate, order):
    distance, stddev = 0.7, 0.9
    x = np.linspace(-30, 40, 700_001)
    base = scipy.stats.norm.logpdf(x, 0, stddev)
    shifted = scipy.stats.norm.logpdf(x, distance, stddev)
    mixed = np.logaddexp(
        math.log(rate) + shifted,
        math.log1p(-rate) + base if rate < 1 else -np.inf,
    )
    step = x[1] - x[0]
    forward = math.log(np.exp((order + 1) * mixed - order * base).sum() * step)
    cost = SampledGaussian(stddev, rate).costs((order,), np.array([distance]))
    assert cost[0, 0] == pytest.approx(forward, rel=1e-6, abs=1e-10)
    # The other direction, which the published right cost bounds, is never larger.
    backward = math.log(np.exp((order + 1) * base - order * mixed).sum() * step)
    assert backward <= forward * (1 + 1e-9)
    squares = (distance / stddev) ** 2 / 2
    right = math.log(
        sum(
            scipy.stats.binom.pmf(k, order, rate) * math.exp((k * k + k) * squares)
            for k in range(order + 1)
        )
    )
    assert backward <= right


def test_clients_at_the_clip_cost_the_worst_case_of_their_orders():
    stated = spent(accountant(), np.ones(7), 10)
    closed = min(
        (10 * order * (order + 1) / 32 - math.log(DELTA)) / order for order in ORDERS
    )
    assert stated.epsilon == pytest.approx(closed, rel=1e-12)
    # And that is above the exact figure for all clients, which stands beside it.
    assert stated.worst_case.epsilon < closed
    assert stated.worst_case.delta == DELTA
    exact = math.sqrt(10) / 4  # one Gaussian release at this multiple of its clip
    epsilon = stated.worst_case.epsilon
    delta = scipy.stats.norm.cdf(exact / 2 - epsilon / exact) - math.exp(
        epsilon
    ) * scipy.stats.norm.cdf(-exact / 2 - epsilon / exact)
    assert delta == pytest.approx(DELTA, rel=2e-2)


def test_smaller_contributions_cost_less():
    whole = spent(accountant(), np.ones(50), 10).epsilon
    mixed = spent(accountant(), np.linspace(0.0, 1.0, 50), 10).epsilon
    small = spent(accountant(), np.full(50, 0.1), 10).epsilon
    assert small < mixed < whole


@pytest.mark.parametrize("stddev", [0.01, 1.0, 300.0])
def test_the_cost_is_the_average_over_contributions_of_different_size(stddev):
    people = np.array([0.3, 0.6, 0.9])
    made = accountant(release_noise=SampledGaussian(stddev), l2_clip=30.0, rounds=7)
    found = made.add_release(people)._spent
    for order, cost in zip(ORDERS, found, strict=True):
        with mpmath.workdps(40):
            moments = [
                mpmath.exp(7 * order * (order + 1) * (r / stddev) ** 2 / 2)
                for r in map(mpmath.mpf, people)
            ]
            expected = mpmath.log(sum(moments) / 3) / 7
        assert cost == pytest.approx(float(expected), rel=1e-9)


def test_shares_of_noise_are_summed_at_the_joint_level():
    joint = SampledGaussian.of_shares(2.0, 9)
    assert joint == SampledGaussian(6.0)
    made = spent(accountant(release_noise=joint, level=Level.JOINT), np.ones(3), 4)
    assert made.epsilon < spent(accountant(), np.ones(3), 4).epsilon


def test_instances_add_up_or_take_the_maximum_depending_on_the_level():
    first, second = np.array([0.2, 0.5]), np.array([0.9])
    costs = {}
    for level in (Level.INSTANCE_SEQUENTIAL, Level.INSTANCE_PARALLEL):
        made = accountant(level=level)
        made.add_release([first, second])
        costs[level] = made._spent.copy()
    alone = [accountant().add_release(each)._spent for each in (first, second)]
    assert costs[Level.INSTANCE_SEQUENTIAL] == pytest.approx(sum(alone))
    assert costs[Level.INSTANCE_PARALLEL] == pytest.approx(np.maximum(*alone))


# --- the two published faults, and two more ---------------------------------------


def true_failure(epsilon, loss_means, chances):
    """P(L ≥ ε) for people whose Gaussian losses have these means."""
    total = 0.0
    for mean, chance in zip(loss_means, chances, strict=True):
        if mean > 0:
            total += chance * scipy.stats.norm.sf(
                (epsilon - mean) / math.sqrt(2 * mean)
            )
    return total


def test_the_published_composition_fails_for_unequal_clients_and_ours_holds():
    # One in a thousand at the clip, the others nowhere; 200 releases.
    rare, rounds, stddev = 1e-3, 200, 4.0
    people = np.zeros(1000)
    people[0] = 1.0
    one = 1 / (2 * stddev**2)  # mean loss at the clip, per release

    def published(order):  # [TF19] Theorem 1: a new person for every release
        cost = math.log1p(rare * math.expm1(order * (order + 1) * one))
        return (rounds * cost - math.log(DELTA)) / order

    claimed = min(published(order) for order in ORDERS)
    law = ([rounds * one], [rare])
    assert true_failure(claimed, *law) > 10 * DELTA
    made = accountant(release_noise=SampledGaussian(stddev), rounds=rounds)
    ours = spent(made, people, rounds)
    assert true_failure(ours.epsilon, *law) <= DELTA
    assert ours.epsilon > claimed


def test_students_interval_misses_rare_clients_and_the_bounded_one_does_not():
    # Most people cost nothing, one in 200 costs everything; samples of 100.
    rare, size, failure = 1 / 200, 100, 0.01
    missed = dict.fromkeys(Interval, 0.0)
    for found in range(30):
        chance = scipy.stats.binom.pmf(found, size, rare)
        sample = np.array([1.0] * found + [0.0] * (size - found))
        for interval in (Interval.STUDENT, Interval.BOUNDED):
            if upper_mean(sample, failure=failure, interval=interval) < rare:
                missed[interval] += chance
    assert missed[Interval.STUDENT] > 50 * failure  # 61 percent instead of one
    assert missed[Interval.BOUNDED] <= failure


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.5])
def test_the_bounded_interval_covers_bernoulli_variables_of_every_mean(mean):
    missed = sum(
        scipy.stats.binom.pmf(found, 40, mean)
        for found in range(41)
        if upper_mean(
            np.repeat([1.0, 0.0], [found, 40 - found]),
            failure=0.05,
            interval=Interval.BOUNDED,
        )
        < mean
    )
    assert missed <= 0.05


def following_failure(epsilon, *, edge, first, second):
    """P(L1 + L2 ≥ ε) where only those with L1 ≥ edge are in the second release."""
    losses = np.linspace(first - 60, first + 90, 300_001)
    density = scipy.stats.norm.pdf(losses, first, math.sqrt(2 * first))
    later = scipy.stats.norm.sf((epsilon - losses - second) / math.sqrt(2 * second))
    exceeds = np.where(losses >= edge, later, losses >= epsilon)
    return float(np.sum(density * exceeds) * (losses[1] - losses[0]))


def test_adaptive_distances_break_the_average_but_not_the_quantile():
    # A client that the first release has shown most is the only one in the second.
    first, second, edge, delta = 18.4, 4.6, 40.0, 1e-8
    picked = scipy.stats.norm.sf((edge - first) / math.sqrt(2 * first))
    averaged = min(
        (
            order * (order + 1) * first
            + math.log1p(picked * math.expm1(order * (order + 1) * second))
            - math.log(delta)
            if order * (order + 1) * second < 700
            else math.inf
        )
        / order
        for order in (1, 2, 3)
    )
    failing = following_failure(averaged, edge=edge, first=first, second=second)
    assert failing > 20 * delta
    # The quantile counts what a person really was in: here all but `picked` of them.
    people = np.full(100_000, 2 * first)
    people[: math.ceil(picked * people.size)] += 2 * second
    share = 1e-9
    stated = typical_epsilon(people, order=1.0, delta=delta, share=share)
    assert following_failure(stated, edge=edge, first=first, second=second) < delta
    assert stated == pytest.approx(2 * (first + second) - math.log(delta))


def test_sequential_accounting_understates_the_cost_of_a_known_client():
    # Batches of 10 from 20 own records, among 10 000 of all clients.
    noise, people = 1.5, np.ones(5)
    epsilons = {}
    for name, rate in (("sequential", 10 / 10_000), ("of this client", 10 / 20)):
        made = accountant(release_noise=SampledGaussian(noise, rate))
        epsilons[name] = spent(made, people, 10).epsilon
    assert epsilons["sequential"] < 0.4 * epsilons["of this client"]


# --- estimates ---------------------------------------------------------------------


def test_a_sample_costs_more_than_the_known_population():
    people = np.linspace(0.0, 0.5, 400)
    known = spent(accountant(), people, 3)
    sampled = spent(accountant(interval=Interval.BOUNDED), people, 3)
    assert known.epsilon < sampled.epsilon


def test_the_quantile_of_a_sample_has_its_confidence():
    # Order statistics of draws from 1..100: how often does the bound lie too low?
    share, failure, size = 0.1, 0.05, 60
    sample = np.arange(1.0, size + 1)
    stated = typical_epsilon(
        sample, order=1.0, delta=0.5, share=share, failure=failure
    ) - math.log(2)
    left_out = size - int(stated)
    assert scipy.stats.binom.cdf(left_out, size, share) <= failure
    assert scipy.stats.binom.cdf(left_out + 1, size, share) > failure
    few = typical_epsilon(
        np.ones(10), order=1.0, delta=0.5, share=share, failure=failure
    )
    assert few == math.inf


# --- what is said, and what is refused ---------------------------------------------


def test_every_average_is_printed_with_the_worst_case_and_its_assumptions():
    stated = spent(accountant(interval=Interval.STUDENT), np.full(20, 0.1), 2)
    worst, drawn = stated.lines()
    assert worst.startswith(f"worst case: {stated.worst_case.figures()} (")
    assert "exchangeable and stationary" in drawn
    assert "nothing about an atypical person" in drawn
    assert "Student's interval, which fails" in drawn
    document = stated.to_dict()
    assert document["worst_case"]["epsilon"] == stated.worst_case.epsilon
    assert document["drawn_at_random"]["level"] == "client"
    assert not hasattr(stated, "status")


def test_a_release_beyond_the_plan_is_rejected():
    made = accountant(rounds=1)
    made.add_release(np.ones(2))
    with pytest.raises(ParameterError, match="1 rounds were planned"):
        made.add_release(np.ones(2))


def test_distances_beyond_the_clip_are_rejected():
    with pytest.raises(InputError, match="exceeds the clip"):
        accountant().add_release(np.array([0.5, 1.1]))


@pytest.mark.parametrize(
    "wrong", [np.array([]), np.array([-1.0]), np.array([math.nan])]
)
def test_invalid_distances_are_refused(wrong):
    with pytest.raises(InputError):
        accountant().add_release(wrong)


def test_levels_use_their_own_shape():
    with pytest.raises(InputError, match=r"takes one vector$"):
        accountant().add_release([np.ones(2)])
    with pytest.raises(InputError, match="for every client"):
        accountant(level=Level.INSTANCE_PARALLEL).add_release(np.ones(2))


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"rounds": 0}, "rounds"),
        ({"l2_clip": 0.0}, "l2_clip"),
        ({"failure": 0.0}, "delta"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changed, parameter):
    with pytest.raises(ParameterError) as refused:
        accountant(**changed)
    assert refused.value.parameter == parameter


def test_a_delta_used_up_by_the_estimates_is_rejected():
    made = accountant(interval=Interval.BOUNDED, failure=1e-4)
    with pytest.raises(ParameterError, match="already take"):
        made.statement(1e-4)


@pytest.mark.parametrize(("stddev", "rate"), [(0.0, 1.0), (1.0, 0.0), (1.0, 1.5)])
def test_noise_out_of_range_is_refused(stddev, rate):
    with pytest.raises(ParameterError):
        SampledGaussian(stddev, rate)
