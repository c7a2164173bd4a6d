"""Adaptive clipping: the flag, its noise, and the rule that moves the clip."""

import dataclasses
import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import SkellamMixtureEvent
from dpnoise.mechanisms import (
    ClippingSchedule,
    MechanismParameters,
    NoiseRule,
    make_mechanism,
    suggest_flag_amplitude,
)

DEVIATIONS = 5.0  # false-alarm rate 5.7e-7 per test


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def full_roster(share):
    """40 clients, none lost: each adds `share`."""
    return NoiseRule(counted_variance=39 * share, min_survivors=40, share_bits=1)


def flagged(**changes):
    given = {
        "mechanism": "skellam-mixture",
        "dim": 30,
        "l2_clip": 1.0,
        "scale_factor": 64.0,
        "modulus": 1 << 20,
        "noise_rule": full_roster(Fraction(4)),
        "num_clients": 40,
        "clip_flag_amplitude": 0.5,
    }
    return MechanismParameters(**(given | changes))


@pytest.mark.parametrize("name", ["skellam-mixture", "skellam", "ddgauss", "binomial"])
def test_the_flag_estimates_the_share_of_clients_within_the_clip(name):
    chosen = make_mechanism(flagged(mechanism=name))
    total = np.zeros(chosen.encoded_dim, np.uint64)
    for index in range(40):
        vector = np.zeros(30)
        vector[index % 30] = 0.9 if index < 30 else 5.0
        total += chosen.encode(
            vector,
            private_seed=seed(name, index),
            public_seed=seed("p"),
            session_noise=chosen.session(40),
        ).residues
    total %= np.uint64(chosen.modulus)
    share = chosen.decode_clip_flag(total, num_contributors=40)
    deviation = math.sqrt(40 * 4.25) / 64.0 / (2 * 0.5 * 40)
    assert abs(share - 0.75) < DEVIATIONS * deviation
    assert chosen.decode(total, public_seed=seed("p")).shape == (30,)


def test_the_flag_counts_in_the_norm_of_the_event():
    plain = make_mechanism(flagged(clip_flag_amplitude=0.0)).event()
    event = make_mechanism(flagged()).event()
    assert isinstance(plain, SkellamMixtureEvent)
    assert isinstance(event, SkellamMixtureEvent)
    assert plain.l2_clip_squared_steps == 64.0**2
    assert event.l2_clip_squared_steps == 64.0**2 * 1.25
    assert event.dim == plain.dim + 1
    assert event.linf_bound == plain.linf_bound == 64.0


def spread(**changes):
    """A flag that is wider than the cap: 0.5·16 steps against 6·16/√1024 = 3."""
    given = {
        "dim": 1024,
        "scale_factor": 16.0,
        "noise_rule": full_roster(Fraction(1, 2)),
    }
    return make_mechanism(flagged(**(given | changes)))


def test_a_flag_above_the_cap_is_spread_over_several_coordinates():
    chosen = spread()
    assert chosen.coordinate_cap == 3
    assert chosen.clip_flag_coordinates == math.ceil((8 / 3) ** 2)
    assert chosen.encoded_dim == 1024 + 8
    for length, sign in ((0.5, 1), (3.0, -1)):
        fixed = chosen._fixed_point(np.full(1024, length / 32.0), seed("p"))
        flag = fixed.values[1024:] / 2.0**32
        assert np.all(sign * flag > 0.0)
        assert float(np.sqrt(np.sum(flag**2))) == pytest.approx(8.0, rel=1e-7)
        assert float(np.abs(flag).max()) <= chosen.coordinate_cap


def test_a_spread_flag_is_read_with_the_noise_of_one_coordinate():
    chosen = spread()
    total = np.zeros(chosen.encoded_dim, np.uint64)
    for index in range(40):
        length = 0.5 if index < 30 else 3.0
        total += chosen.encode(
            np.full(1024, length / 32.0),
            private_seed=seed("spread", index),
            public_seed=seed("p"),
            session_noise=chosen.session(40),
        ).residues
    total %= np.uint64(chosen.modulus)
    share = chosen.decode_clip_flag(total, num_contributors=40)
    deviation = math.sqrt(40 * (0.5 + 0.25)) / 16.0 / (2 * 0.5 * 40)
    assert abs(share - 0.75) < DEVIATIONS * deviation


def test_flags_of_all_clients_never_fill_the_modulus():
    # 40 flags of 8 steps are 320; an eighth of the modulus is 64.
    chosen = spread(modulus=512)
    assert chosen.clip_flag_coordinates == 25
    fixed = chosen._fixed_point(np.zeros(1024), seed("p"))
    assert 40 * float(np.abs(fixed.values[1024:]).max()) / 2.0**32 <= 64.0


def test_a_flag_larger_than_the_vector_is_rejected():
    with pytest.raises(ParameterError) as caught:
        spread(linf_bound=Fraction(1, 4096))
    assert caught.value.parameter == "clip_flag_amplitude"
    assert spread(
        linf_bound=Fraction(1, 4096), clip_flag_amplitude=float(caught.value.nearest)
    )


def test_a_vector_of_exactly_the_clip_counts_as_fitting():
    chosen = make_mechanism(
        flagged(
            dim=1,
            rotation="none",
            noise_rule=dataclasses.replace(
                full_roster(Fraction(1, 1 << 20)), share_bits=20
            ),
        )
    )
    for length, share in ((0.999, 1.0), (1.001, 0.0)):
        residues = chosen.encode(
            np.array([length]),
            private_seed=seed(1),
            public_seed=seed(2),
            session_noise=chosen.session(40),
        ).residues
        assert chosen.decode_clip_flag(residues, num_contributors=1) == pytest.approx(
            share, abs=0.05
        )


def test_decoding_a_missing_flag_is_an_error():
    chosen = make_mechanism(flagged(clip_flag_amplitude=0.0))
    with pytest.raises(ParameterError, match="clip flag"):
        chosen.decode_clip_flag(np.zeros(32, np.uint64), num_contributors=40)


@pytest.mark.parametrize("count", [0, 41])
def test_the_number_of_contributors_is_checked(count):
    chosen = make_mechanism(flagged())
    with pytest.raises(ParameterError, match="num_contributors"):
        chosen.decode_clip_flag(np.zeros(33, np.uint64), num_contributors=count)


def test_the_clip_follows_the_quantile_geometrically():
    schedule = ClippingSchedule(l2_clip=1.0, lowest_clip=0.1, highest_clip=10.0)
    assert schedule.advance(0.5).l2_clip == 1.0
    assert schedule.advance(1.0).l2_clip == pytest.approx(math.exp(-0.1))
    assert schedule.advance(0.0).l2_clip == pytest.approx(math.exp(0.1))


def test_the_clip_settles_where_the_target_share_fits():
    norms = np.linspace(0.0, 4.0, 1001)
    schedule = ClippingSchedule(
        l2_clip=0.2, lowest_clip=0.1, highest_clip=10.0, target_quantile=0.75
    )
    for _ in range(200):
        schedule = schedule.advance(float(np.mean(norms <= schedule.l2_clip)))
    assert schedule.l2_clip == pytest.approx(3.0, abs=0.01)


def test_no_sequence_of_answers_drives_the_clip_out_of_its_bounds():
    schedule = ClippingSchedule(l2_clip=1.0, lowest_clip=0.5, highest_clip=2.0)
    for share in [0.0] * 50:
        schedule = schedule.advance(share)
    assert schedule.l2_clip == 2.0
    for share in [1.0] * 50:
        schedule = schedule.advance(share)
    assert schedule.l2_clip == 0.5


def test_a_unit_scales_the_clip_to_the_planned_norm():
    """64 steps, to twelve significant bits, whatever the clip."""
    for clip, unit in ((1.0, 64), (2.0, 32), (0.5, 128), (3.0, Fraction(21.333))):
        found = ClippingSchedule.unit_of(clip, flagged())
        assert float(found) == pytest.approx(float(unit), rel=2.0**-12)
        assert float(found) * clip == pytest.approx(64.0, rel=2.0**-12)
        assert found.numerator.bit_length() <= 12


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("l2_clip", 20.0),
        ("l2_clip", 0.01),
        ("l2_clip", math.nan),
        ("lowest_clip", 0.0),
        ("highest_clip", 0.05),
        ("target_quantile", 0.0),
        ("target_quantile", 1.0),
        ("learning_rate", 0.0),
    ],
)
def test_an_invalid_schedule_is_rejected(field, value):
    good = ClippingSchedule(l2_clip=1.0, lowest_clip=0.1, highest_clip=10.0)
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(good, **{field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_outside_zero_to_one_is_refused(share):
    good = ClippingSchedule(l2_clip=1.0, lowest_clip=0.1, highest_clip=10.0)
    with pytest.raises(ParameterError, match="unclipped_share"):
        good.advance(share)


def test_the_suggested_amplitude_reaches_the_wanted_precision():
    amplitude = suggest_flag_amplitude(
        l2_clip=2.0, noise_multiplier=3.0, num_clients=100, share_stddev=0.05
    )
    noise = 3.0 * math.hypot(2.0, amplitude)
    assert noise / (2.0 * amplitude * 100) == pytest.approx(0.05, rel=1e-12)


def test_an_unreachable_precision_is_rejected_with_the_nearest_value():
    with pytest.raises(ParameterError) as caught:
        suggest_flag_amplitude(
            l2_clip=1.0, noise_multiplier=10.0, num_clients=50, share_stddev=0.05
        )
    assert caught.value.parameter == "share_stddev"
    assert caught.value.nearest is not None
    suggest_flag_amplitude(
        l2_clip=1.0,
        noise_multiplier=10.0,
        num_clients=50,
        share_stddev=1.01 * float(caught.value.nearest),
    )
