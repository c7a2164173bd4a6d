"""What every mechanism promises: determinism, exact noise, true forecasts."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.encoding.scaling import natural_coordinate_cap
from dpnoise.encoding.wrapping import centre
from dpnoise.errors import InputError, ParameterError, TheoremNotApplicableError
from dpnoise.events import (
    BinomialEvent,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)
from dpnoise.mechanisms import (
    CentralMechanism,
    MechanismParameters,
    NoiseRule,
    make_mechanism,
    mechanism_names,
)
from dpnoise.mechanisms.base import DISTANCE_PER_DRAW, LAYER_LABEL, NOISE_LABEL
from dpnoise.mechanisms.gaussian import SimulatedGaussian
from dpnoise.mechanisms.skellam import SkellamMechanism
from dpnoise.mechanisms.smm import largest_linf_bound, smallest_noise_variance
from dpnoise.samplers import skellam_table

# Five deviations of a normal statistic: two-sided false-alarm rate 5.7e-7 per test.
DEVIATIONS = 5.0

DISTRIBUTED = ("skellam-mixture", "skellam", "smm", "ddgauss", "binomial")
CENTRAL = ("discrete-gaussian", "gaussian")


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def rule(name, share=Fraction(9, 2), **changes):
    """Noise for 12 clients: with all of them each adds `share`, and 6 shares count."""
    return NoiseRule(
        **{
            "counted_variance": share * (1 if name in CENTRAL else 6),
            "min_survivors": 9,
            "loss_fraction": Fraction(3, 12),
            "colluders": 2,
            "share_bits": 1 if name == "binomial" else 20,
        }
        | changes
    )


def parameters(name, share=Fraction(9, 2), **changes):
    given = {
        "mechanism": name,
        "dim": 100,
        "l2_clip": 1.0,
        "scale_factor": 32.0,
        "modulus": 1 << 16,
        "noise_rule": rule(name, share),
        "num_clients": 12,
        "linf_bound": Fraction(1) if name == "smm" else None,
    }
    return MechanismParameters(**(given | changes))


REAL = [name for name in mechanism_names() if name != "skellam-counts"]
"""Mechanisms of real vectors; counts have a module of their own."""


def mechanism(name, **changes):
    return make_mechanism(parameters(name, **changes))


def encode(chosen, vector, private, public, **given):
    noise = chosen.session(12)
    return chosen.encode(
        vector, private_seed=private, public_seed=public, session_noise=noise, **given
    )


def random_vectors(count, dim, *, norm=1.0):
    # A fixed bit source, so the test data never change.
    words = np.frombuffer(
        b"".join(seed("data", i) for i in range(-(-count * dim // 16))), "<u2"
    )
    vectors = words[: count * dim].reshape(count, dim).astype(np.float64) - 32767.5
    return vectors * (norm / np.linalg.norm(vectors, axis=1, keepdims=True))


def modular_sum(chosen, vectors, *, label="p"):
    total = np.zeros(chosen.encoded_dim, np.uint64)
    for index, vector in enumerate(vectors):
        total += encode(chosen, vector, seed(label, index), seed("public")).residues
    total %= np.uint64(chosen.modulus)
    if isinstance(chosen, CentralMechanism):
        return chosen.add_noise(total, private_seed=seed(label, "server"))
    return total


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("rotation", ["hadamard", "hadamard-kronecker", "dft", "none"])
def test_encoding_is_a_function_of_vector_seeds_and_parameters(name, rotation):
    vector = random_vectors(1, 100)[0]
    first = encode(
        mechanism(name, rotation=rotation), vector, seed(1), seed(2)
    ).residues
    again = encode(
        mechanism(name, rotation=rotation), vector.copy(), seed(1), seed(2)
    ).residues
    assert first.dtype == np.uint16
    assert first.shape == (mechanism(name, rotation=rotation).encoded_dim,)
    np.testing.assert_array_equal(first, again)
    if name != "discrete-gaussian":  # truncation uses no private randomness
        other = encode(
            mechanism(name, rotation=rotation), vector, seed(3), seed(2)
        ).residues
        assert np.any(first != other)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("modulus", [1 << 16, (1 << 16) + 1, 1 << 20, (1 << 33) - 9])
def test_the_decoded_sum_does_not_depend_on_a_sufficient_modulus(name, modulus):
    vectors = random_vectors(12, 100)
    chosen = mechanism(name, modulus=modulus)
    estimate = chosen.decode(modular_sum(chosen, vectors), public_seed=seed("public"))
    reference = mechanism(name, modulus=1 << 40)
    expected = reference.decode(
        modular_sum(reference, vectors), public_seed=seed("public")
    )
    np.testing.assert_allclose(estimate, expected, rtol=0.0, atol=1e-9)


def assert_error_as_forecast(chosen, vectors):
    exact = vectors.sum(axis=0)
    forecast = chosen.forecast(sum_l2_norm=float(np.linalg.norm(exact)))
    estimate = chosen.decode(modular_sum(chosen, vectors), public_seed=seed("public"))
    measured = float(np.mean((estimate - exact) ** 2))
    tolerance = DEVIATIONS * math.sqrt(2.0 / chosen.dim) * forecast.expected_mse
    assert abs(measured - forecast.expected_mse) < tolerance


@pytest.mark.parametrize("name", REAL)
def test_the_error_of_the_sum_matches_the_forecast(name):
    chosen = mechanism(
        name,
        dim=8192,
        scale_factor=256.0,
        share=Fraction(400),
        linf_bound=Fraction(12) if name == "smm" else None,
    )
    assert_error_as_forecast(chosen, random_vectors(12, 8192))


@pytest.mark.parametrize("name", ["skellam-mixture", "skellam", "discrete-gaussian"])
@pytest.mark.parametrize("scale_factor", [16.0, 256.0])
def test_at_low_noise_the_forecast_covers_the_rounding_error(name, scale_factor):
    chosen = mechanism(
        name,
        dim=8192,
        scale_factor=scale_factor,
        share=Fraction(1, 64),
        # Conditioning must not bite, or its bias would show beside the rounding.
        rounding_bias=0.0,
    )
    assert_error_as_forecast(chosen, random_vectors(12, 8192))


@pytest.mark.parametrize("name", ["skellam-mixture", "smm", "skellam"])
@pytest.mark.parametrize("linf_bound", [1, 2, 4])
def test_the_forecast_includes_an_active_coordinate_bound(name, linf_bound):
    # Typical coordinates are two steps long; equal vectors, so that nothing cancels.
    chosen = mechanism(
        name,
        dim=8192,
        scale_factor=2.0 * math.sqrt(8192.0),
        share=Fraction(50 * linf_bound**2),
        linf_bound=Fraction(linf_bound),
    )
    vectors = np.repeat(random_vectors(1, 8192), 12, axis=0)
    exact = vectors.sum(axis=0)
    forecast = chosen.forecast()
    estimate = chosen.decode(modular_sum(chosen, vectors), public_seed=seed("public"))
    measured = float(np.mean((estimate - exact) ** 2))
    if linf_bound == 1:
        assert forecast.bias_mse > 0.05 * forecast.noise_mse
    # The clip after rounding and conditioning are not modelled: one percent of it.
    tolerance = DEVIATIONS * math.sqrt(2.0 / 8192) + 0.01
    assert measured == pytest.approx(forecast.expected_mse, rel=tolerance)


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_the_noise_of_all_clients_adds_up_to_their_variance(name):
    dim, clients = 8192, 12
    chosen = mechanism(name, dim=dim, rotation="none")
    zeros = np.zeros((clients, dim))
    noise = centre(modular_sum(chosen, zeros), chosen.modulus).astype(np.float64)
    expected = clients * 4.5
    # ddgauss: the variance of a discrete Gaussian of parameter 4.5 is 4.5 - 10^-37.
    tolerance = DEVIATIONS * math.sqrt(2.0 / dim) * expected * 1.05
    assert abs(float(np.mean(noise**2)) - expected) < tolerance
    assert abs(float(np.mean(noise))) < DEVIATIONS * math.sqrt(expected / dim)


def test_the_noise_share_is_drawn_from_its_table_under_its_label():
    chosen = mechanism("skellam-mixture", rotation="none")
    residues = encode(chosen, np.zeros(100), seed(4), seed(5)).residues
    drawn = skellam_table(Fraction(9, 2)).draw(seed(4), NOISE_LABEL, 100)
    np.testing.assert_array_equal(centre(residues, chosen.modulus), drawn)


@pytest.mark.parametrize("rotation", ["hadamard", "dft", "none"])
def test_the_default_mechanism_is_unbiased(rotation):
    vector = random_vectors(1, 100)[0]
    chosen = mechanism("skellam-mixture", rotation=rotation, scale_factor=4.0)
    repeats = 2000
    total = np.zeros(100)
    for index in range(repeats):
        residues = encode(
            chosen, vector, seed("u", index), seed("p", index % 50)
        ).residues
        total += chosen.decode(
            residues.astype(np.uint64), public_seed=seed("p", index % 50)
        )
    # Projected on the vector, where truncation or shrinking would show.
    shift = float(total @ vector) / repeats - 1.0
    deviation = math.sqrt((4.5 + 0.25) / 16.0 / repeats)
    assert abs(shift) < DEVIATIONS * deviation


@pytest.mark.parametrize("name", ["skellam", "ddgauss", "binomial"])
@pytest.mark.parametrize("rotation", ["hadamard", "dft", "none"])
def test_rounded_vectors_stay_inside_the_bounds_of_the_event(name, rotation):
    chosen = mechanism(name, rotation=rotation, dim=50, scale_factor=5.0)
    event = chosen.event()
    assert isinstance(
        event, SkellamEvent | DistributedDiscreteGaussianEvent | BinomialEvent
    )
    spike, flat = np.zeros(50), np.full(50, 1e6)
    spike[7] = -1e300
    for index, vector in enumerate([spike, flat, *random_vectors(40, 50)]):
        rounded = chosen._round(
            chosen._fixed_point(vector, seed("p")), seed("r", index)
        )
        assert int(rounded @ rounded) <= event.l2_sensitivity**2
        assert event.l1_sensitivity is not None
        assert int(np.abs(rounded).sum()) <= event.l1_sensitivity
        if isinstance(event, SkellamEvent | BinomialEvent):
            assert event.linf_sensitivity is not None
            assert int(np.abs(rounded).max()) <= event.linf_sensitivity


def test_the_mixture_norm_is_enforced_after_rotation_and_scaling():
    # As if rotation and scaling had lengthened the vector: what counts is what is
    # handed to the rounding.
    chosen = mechanism("skellam-mixture", dim=64)
    event = chosen.event()
    assert isinstance(event, SkellamMixtureEvent)
    longer = np.full(64, 1.01 * math.sqrt(event.l2_clip_squared_steps / 64))
    longer[3] = 1e6
    fixed = chosen._to_fixed_point(longer)
    exact = sum(Fraction(int(entry), 1 << 32) ** 2 for entry in fixed.values)
    assert exact <= Fraction(event.l2_clip_squared_steps)
    assert int(np.abs(fixed.values).max()) <= event.linf_bound * 2**32


@pytest.mark.parametrize(
    ("norm", "dim", "flatness", "cap"),
    [
        (1.0, 65_536, 1.0, Fraction(96, 4096)),  # 6/256, a multiple already
        (0.127, 65_536, 1.0, Fraction(13, 4096)),  # 12.19 rounded up
        (42.0, 65_536, 1.0, Fraction(4032, 4096)),
        (43.0, 65_536, 1.0, Fraction(2)),  # above 1, whole steps
        (42.0, 65_536, 2.0, Fraction(2)),
        (0.7, 16, 1.0, Fraction(2868, 4096)),  # never above the norm, 2867.2 rounded up
        (7.5, 65_536, None, Fraction(8)),  # nothing spreads it
        (2.0**-20, 1 << 28, 1.0, Fraction(1, 4096)),
    ],
)
def test_the_cap_is_six_deviations_or_the_norm_rounded_up(norm, dim, flatness, cap):
    assert natural_coordinate_cap(norm, dim=dim, flatness=flatness) == cap


@pytest.mark.parametrize("name", ["skellam-mixture", "skellam", "ddgauss", "binomial"])
def test_a_cap_below_one_grid_step_is_enforced_and_stated_in_the_event(name):
    chosen = mechanism(name, dim=4096, scale_factor=2.0, share=Fraction(50))
    assert chosen.coordinate_cap == Fraction(768, 4096)  # 6·2/64
    event = chosen.event()
    if isinstance(event, SkellamMixtureEvent):
        assert event.linf_bound == 0.1875
    elif isinstance(event, SkellamEvent | BinomialEvent):
        assert event.linf_sensitivity == 1  # of the rounded vector
    spike = np.zeros(4096)
    spike[5] = 1.0
    straight = mechanism(
        name,
        dim=4096,
        scale_factor=2.0,
        share=Fraction(50),
        rotation="none",
        linf_bound=Fraction(768, 4096),
    )
    fixed = straight._fixed_point(spike, seed("p"))
    assert int(np.abs(fixed.values).max()) == (768 << 32) // 4096
    rounded = straight._round(fixed, seed("r"))
    assert int(np.abs(rounded).max()) <= 1


def test_truncation_keeps_the_clip_as_the_sensitivity():
    chosen = mechanism("discrete-gaussian", rotation="none", dim=50)
    event = chosen.event()
    assert isinstance(event, DiscreteGaussianEvent)
    assert event.l2_sensitivity == pytest.approx(32.0)
    for index, vector in enumerate(random_vectors(40, 50, norm=3.0)):
        rounded = chosen._round(
            chosen._fixed_point(vector, seed("p")), seed("r", index)
        )
        assert int(rounded @ rounded) <= 32 * 32


def test_a_grid_too_coarse_for_truncation_is_rejected():
    with pytest.raises(ParameterError) as caught:
        mechanism("discrete-gaussian", scale_factor=0.99)
    assert caught.value.parameter == "scale_factor"
    assert caught.value.nearest == "1"


def test_each_mechanism_states_its_own_release_with_the_counted_noise():
    counted = (9 - 2 - 1) * Fraction(9, 2)  # the noise of six shares
    kinds = {
        "skellam-mixture": SkellamMixtureEvent,
        "skellam": SkellamEvent,
        "smm": SkellamMixtureClippedEvent,
    }
    for name, kind in kinds.items():
        event = mechanism(name).event()
        assert isinstance(event, kind)
        assert event.aggregate_noise_variance == counted
        assert event.dim == 128
    mixture = mechanism("skellam-mixture").event()
    assert isinstance(mixture, SkellamMixtureEvent)
    assert mixture.l2_clip_squared_steps == 1024.0
    assert mixture.linf_bound == math.ceil(6.0 * 32.0 / math.sqrt(128.0))
    ddgauss = mechanism("ddgauss").event()
    assert isinstance(ddgauss, DistributedDiscreteGaussianEvent)
    assert ddgauss.num_noise_shares == 6
    assert ddgauss.local_noise_variance == Fraction(9, 2)
    binomial = mechanism("binomial").event()
    assert isinstance(binomial, BinomialEvent)
    assert binomial.num_trials == 4 * counted
    gaussian = mechanism("gaussian").event()
    assert isinstance(gaussian, GaussianEvent)
    assert gaussian.noise_variance == 4.5


def test_simulated_noise_has_the_stated_variance():
    drawn = np.zeros(1 << 18, np.int64)
    SimulatedGaussian(Fraction(400)).add_to(drawn, bytes(32), b"noise")
    # Rounding to integers adds 1/12. Five deviations either way: a false alarm once in
    # 10^6 under fresh seeds; 3 % are eleven.
    away = np.mean(drawn.astype(float) ** 2) / (400 + 1 / 12) - 1.0
    assert abs(away) < 5.0 * math.sqrt(2.0 / drawn.size)


@pytest.mark.parametrize("name", [*DISTRIBUTED, "discrete-gaussian"])
def test_the_event_charges_the_sampler_for_every_draw(name):
    chosen = mechanism(name)
    event = chosen.event()
    draws = chosen.encoded_dim * (1 if name == "discrete-gaussian" else 12)
    # Tables differ from session to session; each draw is charged for the worst.
    for roster in (9, 10, 12):
        noise = chosen.session(roster)
        bound = chosen.sampler(noise.base).distance_bound
        assert event.sampler_distance >= draws * bound
        assert 0.0 < bound < DISTANCE_PER_DRAW


@pytest.mark.parametrize("name", CENTRAL)
def test_central_mechanisms_add_no_noise_at_clients(name):
    chosen = mechanism(name, rotation="none", dim=4)
    residues = encode(
        chosen, np.array([0.25, -0.5, 0.0, 0.125]), seed(1), seed(2)
    ).residues
    np.testing.assert_array_equal(centre(residues, chosen.modulus), [8, -16, 0, 4])
    assert chosen.noise_is_central
    noisy = chosen.add_noise(residues, private_seed=seed(3))
    assert np.any(noisy != residues)


def test_distributed_mechanisms_are_not_central():
    assert not any(mechanism(name).noise_is_central for name in DISTRIBUTED)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.full(100, np.nan), "NaN"),
        (np.full(100, np.inf), "infinite"),
        (np.zeros(99), "shape"),
        (np.zeros((100, 1)), "shape"),
        (np.zeros(100, complex), "dtype"),
        (np.zeros(100, bool), "dtype"),
        (["a"] * 100, "dtype"),
    ],
)
@pytest.mark.parametrize("name", REAL)
def test_a_bad_vector_is_refused_by_name(name, vector, message):
    with pytest.raises(InputError, match=message):
        encode(mechanism(name), vector, seed(1), seed(2))


@pytest.mark.parametrize("name", REAL)
def test_vectors_of_any_finite_length_are_encoded(name):
    for size in (0.0, 5e-324, 1e-30, 1.0, 1e30, 1.7e308):
        vector = np.full(100, size)
        encode(mechanism(name), vector, seed(1), seed(2))


def test_errors_about_seeds_do_not_show_them():
    chosen = mechanism("skellam-mixture")
    secret = b"SECRET" * 4
    for private, public in ((secret, seed(1)), (seed(1), secret), ("text", seed(1))):
        with pytest.raises(InputError) as caught:
            encode(chosen, np.zeros(100), private, public)
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "residues",
    [
        np.zeros(127, np.uint16),
        np.zeros((128, 1), np.uint16),
        np.zeros(128, np.int64),
        np.zeros(128, np.float64),
        np.full(128, 65535, np.uint16),
        [0] * 128,
    ],
)
def test_a_sum_of_the_wrong_kind_is_refused(residues):
    chosen = mechanism("skellam-mixture", modulus=65535)
    with pytest.raises(InputError):
        chosen.decode(residues, public_seed=seed(2))


def test_parameters_of_another_mechanism_are_refused():
    with pytest.raises(ParameterError, match="smm"):
        SkellamMechanism(parameters("smm"))


def test_smm_requires_an_integer_bound_and_suggests_one():
    with pytest.raises(ParameterError) as caught:
        mechanism("smm", linf_bound=None)
    assert caught.value.parameter == "linf_bound"
    assert caught.value.nearest == str(largest_linf_bound(2, Fraction(27)))


def test_smm_rejects_noise_outside_its_theorem_and_names_the_minimum():
    with pytest.raises(TheoremNotApplicableError) as caught:
        mechanism("smm", share=Fraction(2))
    assert caught.value.theorem == "Corollary 1 [Bao22]"
    assert caught.value.nearest == "above 15.45"
    mechanism("smm", share=Fraction(2576, 1000))
    with pytest.raises(TheoremNotApplicableError):
        mechanism("smm", share=Fraction(2575, 1000))


def test_smm_rejects_a_bound_too_large_for_its_clip():
    with pytest.raises(ParameterError, match="16777216") as caught:
        mechanism("smm", linf_bound=Fraction((1 << 24) + 1))
    assert caught.value.parameter == "linf_bound"


def test_smm_rejects_a_clip_flag():
    with pytest.raises(ParameterError, match="clip flag"):
        mechanism("smm", clip_flag_amplitude=0.1)


def test_smm_refuses_a_bound_that_is_no_integer():
    with pytest.raises(ParameterError, match="integer linf_bound") as caught:
        mechanism("smm", linf_bound=Fraction(3, 2))
    assert caught.value.nearest == "1"


@pytest.mark.parametrize("order", [2, 3, 7, 20])
def test_the_linf_bound_is_the_largest_integer_within_the_theorem(order):
    quadratic = Fraction(109 * order * order - 18 * order - 91, 10)

    def admits(bound, variance):
        return order < variance / bound + 1 and quadratic < 2 * variance / bound**2

    for tenth in range(1, 4000, 7):
        variance = Fraction(tenth, 2)
        bound = largest_linf_bound(order, variance)
        assert bound == 0 or admits(bound, variance)
        assert not admits(bound + 1, variance)
    for bound in (1, 2, 9):
        least = smallest_noise_variance(order, bound)
        assert largest_linf_bound(order, least) < bound
        assert largest_linf_bound(order, least + Fraction(1, 1000)) >= bound


def test_a_binomial_share_has_an_even_number_of_bits():
    with pytest.raises(ParameterError) as caught:
        mechanism("binomial", noise_rule=rule("binomial", share_bits=2))
    assert (caught.value.parameter, caught.value.nearest) == ("share_bits", "1")
    # 9 of 9 clients count 6 shares of 51/12, rounded up to halves.
    chosen = mechanism("binomial", noise_rule=rule("binomial", Fraction(17, 4)))
    assert chosen.session(12).base == Fraction(9, 2)


def test_the_digest_identifies_law_and_variance():
    digests = [mechanism(name).sampler_digest for name in REAL]
    digests.append(mechanism("skellam", share=Fraction(5)).sampler_digest)
    assert all(len(digest) == 32 for digest in digests)
    # Three mechanisms share one Skellam table, two share one discrete Gaussian.
    assert len(set(digests)) == len(digests) - 3


LADDER = {"loss_fraction": Fraction(1, 4), "colluders": 0, "ladder": 3}


def test_the_digests_of_a_session_cover_its_draws():
    chosen = mechanism("skellam", noise_rule=rule("skellam", **LADDER))
    noise = chosen.session(12)
    digests = chosen.sampler_digests(noise)
    assert digests == tuple(
        skellam_table(variance).digest for variance in (noise.base, *noise.layers)
    )
    assert len(digests) == noise.draws == 5
    # Where no client may be lost there is nothing to take back.
    assert chosen.session(9).layers == ()


def test_a_layer_can_be_redrawn_from_its_seed_in_parts():
    chosen = mechanism(
        "skellam-mixture", rotation="none", noise_rule=rule("skellam", **LADDER)
    )
    noise = chosen.session(12)
    seeds = [seed("layer", number) for number in range(noise.draws - 1)]
    whole = encode(chosen, np.zeros(100), seed(4), seed(5), layer_seeds=seeds)
    layers = list(zip(noise.layers, seeds, strict=True))
    again = np.concatenate(
        [
            chosen.layer_noise(layers, start=start, count=count)
            for start, count in ((0, 7), (7, 60), (67, 33))
        ]
    )
    drawn = sum(
        skellam_table(variance).draw(layer_seed, LAYER_LABEL, 100)
        for variance, layer_seed in layers
    )
    np.testing.assert_array_equal(centre(again, chosen.modulus), drawn)
    base = skellam_table(noise.base).draw(seed(4), NOISE_LABEL, 100)
    left = centre(whole.residues, chosen.modulus) - drawn
    np.testing.assert_array_equal(left, base)


def test_a_ladder_is_charged_for_the_base_and_every_layer():
    flat = mechanism("skellam", noise_rule=rule("skellam", **(LADDER | {"ladder": 0})))
    layered = mechanism("skellam", noise_rule=rule("skellam", **LADDER))
    assert layered.session(12).draws == 2 + 3
    assert layered.sampler_distance == (2 + 3) * flat.sampler_distance


@pytest.mark.parametrize("seeds", [[], [seed(1)] * 3, [seed(1)] * 5])
def test_the_number_of_layer_seeds_must_match_the_layers(seeds):
    chosen = mechanism("skellam", noise_rule=rule("skellam", **LADDER))
    with pytest.raises(InputError, match="4 layers"):
        encode(chosen, np.zeros(100), seed(4), seed(5), layer_seeds=seeds)


def test_noise_that_does_not_add_up_accepts_no_ladder():
    with pytest.raises(ParameterError) as caught:
        mechanism("ddgauss", noise_rule=rule("ddgauss", **LADDER))
    assert (caught.value.parameter, caught.value.nearest) == ("ladder", "0")


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("skellam", Fraction(1 << 32) + 1),
        ("ddgauss", Fraction(1, 65)),
        ("binomial", Fraction((1 << 32) + 1)),
    ],
)
def test_a_share_beyond_the_samplers_is_refused_before_a_table_is_built(name, share):
    with pytest.raises(ParameterError) as caught:
        mechanism(name, share=share)
    assert caught.value.parameter == "counted_variance"
    nearest = Fraction(float(caught.value.nearest))
    mechanism(name, noise_rule=rule(name, counted_variance=nearest))


def test_a_smaller_roster_gets_larger_noise_shares():
    chosen = mechanism("skellam")
    # Losses: 0, 2, 2, 3 of 9, 10, 11, 12; two collude and one is the user.
    shares = [27 / chosen.session(roster).base for roster in (9, 10, 11, 12)]
    assert shares == pytest.approx([6, 6, 6, 6])
    fewer = mechanism(
        "skellam", noise_rule=rule("skellam", loss_fraction=Fraction(1, 12))
    )
    shares = [27 / fewer.session(roster).base for roster in (9, 10, 11, 12)]
    assert shares == pytest.approx([6, 7, 8, 8])
    for roster in (8, 13):
        with pytest.raises(ParameterError, match="roster"):
            chosen.session(roster)


def test_ddgauss_states_the_roster_that_cuts_its_noise_into_most_shares():
    few = make_mechanism(
        parameters("ddgauss", noise_rule=rule("ddgauss", loss_fraction=Fraction(0)))
    ).event()
    # Of 12 clients none may be lost: 12 - 2 - 1 shares of 27/9.
    assert (few.num_noise_shares, few.local_noise_variance) == (9, Fraction(3))


def test_a_long_vector_is_clipped_and_keeps_its_direction():
    chosen = mechanism(
        "gaussian", dim=4, rotation="none", scale_factor=2.0**20, modulus=1 << 40
    )
    huge = np.array([3e5, 0.0, -4e5, 0.0])
    residues = encode(chosen, huge, seed(1), seed(2)).residues
    np.testing.assert_allclose(
        chosen.decode(residues, public_seed=seed(2)), [0.6, 0.0, -0.8, 0.0], atol=1e-5
    )


def test_the_representation_shows_parameters_only():
    text = repr(mechanism("skellam-mixture"))
    assert text.startswith("SkellamMixtureMechanism(MechanismParameters(")


SHORTENED = [name for name in REAL if name != "smm"]


def shortened(name, vector, **changes):
    chosen = mechanism(name, dim=len(vector), scale_factor=64.0, **changes)
    return encode(chosen, vector, seed(1), seed(2)).shortened_by


@pytest.mark.parametrize("rotation", ["hadamard", "dft", "none"])
@pytest.mark.parametrize("name", SHORTENED)
def test_encoding_reports_the_clipping_factor_of_a_vector(name, rotation):
    direction = random_vectors(1, 50)[0]
    for length in (0.0, 1e-300, 1e-12, 0.3, 0.999999):
        assert shortened(name, length * direction, rotation=rotation) == 1.0
    for factor in (1.01, 10.0, 4e199):
        found = shortened(name, factor * direction, rotation=rotation)
        assert found == pytest.approx(factor, rel=2e-6)
    assert math.isfinite(shortened(name, np.full(50, 1.7e308), rotation=rotation))


def test_coordinate_bounds_and_the_published_clip_count_as_clipping():
    spike = np.zeros(16)
    spike[3] = 1.0
    capped = shortened("skellam", spike, rotation="none", linf_bound=Fraction(16))
    assert capped == pytest.approx(4.0, rel=1e-6)
    # [Bao22] Algorithm 5 acts like a clip of the L1 norm on flat vectors.
    assert shortened("smm", np.full(1 << 16, 1 / 256)) > 2.0


def test_the_representation_of_an_encoding_shows_only_its_length():
    made = encode(mechanism("skellam"), random_vectors(1, 100)[0], seed(1), seed(2))
    assert repr(made) == "Encoded(length=128, entries=<redacted>)"
