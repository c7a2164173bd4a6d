"""What a sum says of itself: figures, text, and the reasons against intervals."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import secagg
from dpnoise import Histogram
from secagg import advanced
from secagg.client.contribution import Contribution
from secagg.distributed_dp import EXACT, NoisyTask, SumError, make_randomiser
from secagg.server.task.outputs import released_sum

NOISE = {"clients": 3, "epsilon": 8.0, "delta": 1e-5}


def a_sum(values, error, inputs=4):
    return Contribution(
        session_number=7,
        inputs=inputs,
        values=None if values is None else np.array(values),
        privacy=None,
        grounds="",
        shortened_by=None,
        sessions_left=None,
        error=error,
    )


def test_an_exact_sum_has_no_error():
    total = a_sum([10, 12, -3, 5], EXACT)
    assert total.standard_error == 0.0
    low, high = total.interval()
    assert low.tolist() == high.tolist() == [10, 12, -3, 5]
    assert total.mean.tolist() == [2.5, 3.0, -0.75, 1.25]
    shown = "sum of 4 vectors (session 7): 10, 12, -3, … (4 entries); exact, without"
    assert str(total) == f"{shown} noise"


def test_an_interval_is_centred_on_each_entry():
    total = a_sum([10.0, 20.0], SumError(Fraction(9)))
    low, high = total.interval(0.95)
    assert (low + high).tolist() == [20.0, 40.0]
    assert (high - low)[0] == pytest.approx(2 * 1.95996 * 3.0, rel=1e-5)
    joint, _ = total.interval(0.95, joint=True)
    each, _ = total.interval(0.975)
    assert joint == pytest.approx(each, rel=1e-12)
    below, above = total.interval(0.95, of_mean=True)
    assert (below * 4, above * 4) == (pytest.approx(low), pytest.approx(high))
    assert "(session 7): 10.00 ± 3.00, 20.00 ± 3.00; exact" in str(total)


def test_an_interval_of_counts_has_integer_ends():
    low, high = a_sum([10.0, 20.0], SumError(Fraction(2), Fraction(1))).interval()
    assert (low.tolist(), high.tolist()) == ([7.0, 17.0], [13.0, 23.0])


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_out_of_range_is_the_callers_fault(confidence):
    with pytest.raises(secagg.LocalProtocolError, match="confidence"):
        a_sum([1.0], SumError(Fraction(9))).interval(confidence)


def test_a_sum_that_was_not_fetched_has_an_error_but_no_values():
    total = a_sum(None, SumError(Fraction(9)))
    assert total.standard_error == 3.0
    assert "not fetched" in str(total)
    assert "not fetched" in total._repr_html_()
    for ask in (total.interval, lambda: total.mean):
        with pytest.raises(secagg.LocalProtocolError, match="not fetched"):
            ask()


def refused(error, reason):
    """Demand that a sum of this error has no interval, and says so everywhere."""
    total = a_sum([1.0, 2.0], error)
    with pytest.raises(secagg.LocalProtocolError, match=reason) as caught:
        total.interval()
    assert "standard_error" in caught.value.next_step
    assert f"no interval: {error.flaws[0]}" in str(total).splitlines()
    assert total.standard_error > 0.0


def task_of(made, **more):
    parameters = secagg.Cohort.planned(made).parameters(dimension=1, modulus=2)
    return NoisyTask.from_plan(made, parameters, **more)


def test_secret_selection_adds_to_the_error_and_has_no_interval():
    rate = Fraction(1, 4)
    made = secagg.plan(
        **NOISE,
        dimension=64,
        l2_clip=2.0,
        mechanism="skellam",
        accountant="skellam-gdp",
        selection_rate=rate,
        bits=20,
    )
    task = task_of(made)
    error = task.sum_error(inputs=3, certificate=None)
    refused(error, "secret selection decides")
    # 64 entries hold what the coins take away: 3/1 · 3 · 2²/64 of it.
    scale = Fraction(made.parameters.scale_factor)
    noise = task.mechanism.total_noise_variance / scale**2
    coins = Fraction(3 * 3 * 4, 64)
    assert float(error.mean_square) == pytest.approx(noise / rate**2 + coins, rel=1e-3)


def test_a_local_randomiser_adds_to_the_error_and_has_no_interval():
    layer = advanced.LocalParameters(
        randomiser="privunit2", dim=64, bound=2.0, epsilon=20.0
    )
    made = secagg.plan(
        **NOISE, dimension=64, l2_clip=make_randomiser(layer).output_norm
    )
    error = task_of(made, randomiser=layer).sum_error(inputs=3, certificate=None)
    refused(error, "local randomiser")
    assert error.mean_square > task_of(made).sum_error(
        inputs=3, certificate=None
    ).mean_square + Fraction(1, 10)


def test_an_adaptive_clip_has_no_interval_and_scales_the_error():
    schedule = advanced.ClippingSchedule(
        l2_clip=1.0, lowest_clip=0.1, highest_clip=10.0
    )
    made = secagg.plan(
        clients=20,
        dimension=64,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        clip_flag_amplitude=0.3,
    )
    task = task_of(made, clip=schedule)
    at = replace(task, unit=task.units.start)
    error = at.sum_error(inputs=20, certificate=None)
    refused(error, "the adaptive clip")
    finer = replace(task, unit=2 * task.units.start)
    halved = finer.sum_error(inputs=20, certificate=None)
    assert halved.mean_square == error.mean_square / 4


def test_the_published_clip_of_smm_has_no_interval():
    made = secagg.plan(**NOISE, dimension=64, l2_clip=1.0, mechanism="smm")
    refused(task_of(made).sum_error(inputs=3, certificate=None), "the clip of smm")


async def test_operator_and_clients_get_the_same_error_of_a_sum(monkeypatch):
    """Then the same sum with a member that has signed other sets."""
    ages = Histogram((0, 18, 65, 120))
    contribute, got = secagg.Client.contribute, []

    async def watched(client, vector):
        got.append(await contribute(client, vector))
        return got[-1]

    monkeypatch.setattr(secagg.Client, "contribute", watched)
    made = secagg.plan(ages, clients=4, min_survivors=3, epsilon=8.0, delta=1e-5)
    async with secagg.local(made) as people:
        total = await people.sum(ages.encode(age) for age in (5, 40, 41, 70))
    noise = total.receipt.noise
    assert noise.total < noise.total_noise
    assert total.error == SumError(noise.total, Fraction(1))
    assert ages.decode(total).standard_error == total.standard_error
    for each in got:  # a client does not know what the others have taken back
        assert each.error == SumError(noise.total_noise, Fraction(1))
        assert (each.values == total.values).all()
        assert ages.decode(each).half_width >= ages.decode(total).half_width
    stated = f"± {total.standard_error:.3g}"[:5]
    assert str(total).count(stated) == 3
    assert str(total).endswith("; epsilon 8, delta 1e-05")

    receipt = replace(total.receipt, unconfirmed=("<i>client-2</i>",))
    spoiled = released_sum(
        receipt.descriptor,
        total.residues,
        privacy=total.privacy,
        receipt=receipt,
        audit=b"",
    )
    with pytest.raises(secagg.LocalProtocolError, match=r"client-2.* other sets"):
        spoiled.interval()
    assert spoiled.standard_error == total.standard_error
    shown = spoiled._repr_html_()
    assert "<i>" not in shown
    assert "&lt;i&gt;client-2" in shown


async def test_a_client_whose_vector_was_clipped_or_replaced_gets_no_interval(
    monkeypatch,
):
    contribute, got = secagg.Client.contribute, []

    async def watched(client, vector):
        got.append(await contribute(client, vector))
        return got[-1]

    monkeypatch.setattr(secagg.Client, "contribute", watched)
    made = secagg.plan(clients=3, dimension=2, l2_clip=1.0, epsilon=8.0, delta=1e-5)
    given = [lambda _: np.ones(2), lambda _: np.full(2, np.nan), lambda _: np.zeros(2)]
    async with secagg.local(made) as people:
        with pytest.warns(advanced.ClippingWarning):
            await people.sum(given)
    assert sorted(each.error.flaws for each in got) == [
        (),
        ("this client's vector was shortened",),
        ("zeros replaced this client's vector",),
    ]


async def test_a_local_task_without_noise_requires_the_waiver():
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    cohort = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
    task = secagg.PreparedTask.exact(waiver, cohort, dimension=2)
    with pytest.raises(secagg.LocalProtocolError, match="without noise"):
        async with secagg.local(task):
            pass
    async with secagg.local(task, privacy_limits=waiver) as people:
        total = await people.sum([[1, 2]] * 3)
    assert total.standard_error == 0.0
    assert str(total) == "sum of 3 vectors (session 1): 3, 6; exact, without noise"
