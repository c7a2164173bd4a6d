"""A clip that follows the sums: one budget, bounds that clients keep, one rule."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of

import secagg
from secagg import advanced
from secagg.crypto.modular import add_into, zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import following_terms, offered_terms
from secagg.distributed_dp.units import UnitBounds, read_unit, unit_terms
from secagg.errors import ErrorCode, InputError, RemoteProtocolError
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.policy import PrivacyLimits
from secagg.server.task.history import TaskHistory

CLIENTS, DIM = 24, 12
ASKED = {
    "clients": CLIENTS,
    "dimension": DIM,
    "l2_clip": 1.0,
    "epsilon": 8.0,
    "delta": 1e-5,
    "bits": 20,
    "mechanism": "skellam",
    "accountant": "skellam-gdp",
    "steps": 4,
}
LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)


@pytest.fixture(scope="module")
def made():
    amplitude = advanced.clip_flag_amplitude(advanced.PlanRequest(**ASKED))
    return secagg.plan(**ASKED, clip_flag_amplitude=amplitude)


def schedule(**changes):
    given = {"l2_clip": 1.0, "lowest_clip": 0.25, "highest_clip": 4.0}
    return advanced.ClippingSchedule(**(given | changes))


@pytest.fixture(scope="module")
def prepared(made):
    return secagg.PreparedTask.from_plan(made, clip=schedule())


def offer(prepared, terms=None):
    if terms is None:
        terms = offered_terms(prepared.parameters, b"")
    return offer_of(prepared.parameters, noise_terms=terms)


def summed(session, lengths):
    """Encode vectors of these lengths and add them up."""
    task = advanced.NoisyTask.of_session(session)
    modulus = session.parameters.modulus
    total = zeros(session.parameters.dimension, modulus)
    for number, length in enumerate(lengths):
        vector = np.zeros(DIM)
        vector[number % DIM] = length
        given = task.encode(
            vector,
            session_id=session.session_id,
            secrets=NoiseSecrets(
                CLIENTS, bytes(32), SecretBytes(bytes([number + 1]) * 32)
            ),
        )
        add_into(total, given.vector.residues, modulus)
    return total % modulus


def test_an_adaptive_clip_has_the_budget_of_a_fixed_clip_bit_for_bit(made, prepared):
    fixed = secagg.PreparedTask.from_plan(made)
    assert prepared.report.server == fixed.report.server
    assert prepared.report.model_reader == fixed.report.model_reader
    units = prepared.noised.units
    for unit in (units.lowest, units.start, units.highest):
        session = offer(prepared, unit_terms(unit))
        task = advanced.NoisyTask.of_session(session)
        assert task.report().server == fixed.report.server
        # What is charged is charged to the block, which does not move.
        assert session.parameters.noise_block == prepared.parameters.noise_block
    assert units.start == Fraction(made.parameters.scale_factor)
    assert float(units.highest / units.start) == pytest.approx(4.0, rel=2e-3)
    assert float(units.start / units.lowest) == pytest.approx(4.0, rel=2e-3)


def test_vectors_and_sums_use_the_callers_units_for_every_clip(prepared):
    """Six deviations of all noise: a false alarm in 10^7 runs; seeds are fixed."""
    units = prepared.noised.units
    for unit in (units.lowest, units.highest):
        session = offer(prepared, unit_terms(unit))
        task = advanced.NoisyTask.of_session(session)
        clip = task.l2_clip
        assert clip == pytest.approx(1.0 * float(units.start / unit))
        total = summed(session, [0.5 * clip] * DIM)
        estimate = task.decode(total, session_id=session.session_id)
        noise = float(task.session_noise(CLIENTS).upload) * DIM
        assert np.abs(estimate - 0.5 * clip).max() < 6.0 * noise**0.5 / float(unit)
        given = task.encode(
            np.full(DIM, clip),
            session_id=session.session_id,
            secrets=NoiseSecrets(CLIENTS, bytes(32), SecretBytes(bytes(32))),
        )
        assert given.shortened_by == pytest.approx(DIM**0.5, rel=1e-3)


def test_every_finite_vector_can_be_encoded_in_every_unit(prepared):
    """Else a server could choose one at which the longest vectors stay away."""
    units = prepared.noised.units
    longest = np.full(DIM, np.finfo(np.float64).max)
    for unit in (units.lowest, units.start, units.highest):
        session = offer(prepared, unit_terms(unit))
        task = advanced.NoisyTask.of_session(session)
        task.check_vector(longest)
        task.encode(
            longest,
            session_id=session.session_id,
            secrets=NoiseSecrets(CLIENTS, bytes(32), SecretBytes(bytes(32))),
        )
        for bad in (np.nan, np.inf, -np.inf):
            with pytest.raises(InputError):
                task.check_vector(np.full(DIM, bad))


@pytest.mark.parametrize(
    "vector", [np.array(["a"] * DIM), np.zeros(DIM, complex)], ids=["text", "complex"]
)
def test_a_vector_of_non_numbers_raises_a_clear_error_in_every_unit(prepared, vector):
    session = offer(prepared, unit_terms(prepared.noised.units.start))
    secrets = NoiseSecrets(CLIENTS, bytes(32), SecretBytes(b"n" * 32))
    with pytest.raises(InputError):
        advanced.NoisyTask.of_session(session).encode(
            vector, session_id=session.session_id, secrets=secrets
        )


@pytest.mark.parametrize(
    ("terms", "word"),
    [
        (b"", "JSON"),
        (b"{}", "unit"),
        (b'{"unit":"1"}', "p/q"),
        (b'{"unit":"2/2"}', "canonical"),
        (b'{"unit": "1/1"}', "canonical"),
        (b'{"unit":"1/0"}', "p/q"),
        (b'{"unit":"-1/2"}', "p/q"),
        (b'{"unit":1.5}', "p/q"),
        (b'{"unit":"1/1","x":1}', "state only a unit"),
        (b'{"unit":"' + b"9" * 40 + b'/1"}', "p/q"),
        (unit_terms(Fraction(1, 1 << 40)), "allows"),
        (unit_terms(Fraction(1 << 40)), "allows"),
    ],
)
def test_a_session_outside_the_bounds_of_its_task_is_rejected(prepared, terms, word):
    """R3.5-3."""
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        advanced.NoisyTask.of_session(offer(prepared, terms))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def with_unit(prepared, **changes):
    block = json.loads(prepared.parameters.noise_block)
    block["unit"] |= changes
    bytes_of = json.dumps(block, sort_keys=True, separators=(",", ":")).encode()
    return replace(prepared.parameters, noise_block=bytes_of)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"start": "1/1000000"}, "order"),
        ({"lowest": "0/1"}, "p/q"),
        ({"lowest": "2/4"}, "canonical"),
        ({"quantile": "1/1"}, "quantile"),
        ({"quantile": 0.5}, "p/q"),
        ({"highest": "1" + 27 * "0" + "/1"}, "2\\^64"),
        ({"lowest": "1/1" + 27 * "0"}, "2\\^64"),
        ({"more": "1/1"}, "quantile"),
    ],
)
def test_ineffective_bounds_are_bad_config(prepared, changes, word):
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        advanced.NoisyTask.from_parameters(with_unit(prepared, **changes))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_an_offer_cannot_change_a_fixed_clip(made):
    fixed = secagg.PreparedTask.from_plan(made)
    with pytest.raises(RemoteProtocolError, match="is fixed"):
        advanced.NoisyTask.of_session(offer(fixed, unit_terms(Fraction(1))))
    assert offered_terms(fixed.parameters, b"") == b""
    assert following_terms(offer(fixed, b""), zeros(1, 2), inputs=1) == b""


def test_decoding_requires_a_known_unit(prepared):
    with pytest.raises(RemoteProtocolError, match="offer"):
        prepared.noised.decode(zeros(1, 2), session_id=bytes(32))


def test_sessions_with_different_units_have_different_identifiers(prepared):
    """A client that was told another unit has other keys and masks."""
    units = prepared.noised.units
    one, other = (offer(prepared, unit_terms(u)) for u in (units.start, units.lowest))
    assert one.session_id != other.session_id
    assert one.configuration_hash != other.configuration_hash


def test_the_next_unit_is_computed_from_the_sum(prepared):
    session = offer(prepared)
    long = following_terms(session, summed(session, [3.0] * CLIENTS), inputs=CLIENTS)
    short = following_terms(session, summed(session, [0.1] * CLIENTS), inputs=CLIENTS)
    start = prepared.noised.units.start
    assert read_unit(long) < start < read_unit(short)
    # Half of an error moves by a factor of e^0.1 at most, less what noise took.
    assert float(start / read_unit(long)) == pytest.approx(np.exp(0.1), rel=0.03)
    assert offered_terms(prepared.parameters, long) == long


def test_a_unit_outside_the_bounds_of_the_task_is_reset(made, prepared):
    narrow = secagg.PreparedTask.from_plan(
        made, clip=schedule(lowest_clip=0.9, highest_clip=1.1)
    )
    far = unit_terms(prepared.noised.units.highest)
    begun = unit_terms(narrow.noised.units.start)
    assert offered_terms(narrow.parameters, far) == begun


def test_a_unit_stays_within_its_bounds(prepared, made):
    units, parameters = prepared.noised.units, made.parameters
    for fitted, end in ((1.0, units.highest), (0.0, units.lowest)):
        unit = units.start
        for _ in range(60):
            unit = units.following(unit, parameters, fitted=fitted)
        assert unit == end
    assert units.following(units.start, parameters, fitted=0.5) == units.start


def test_the_adaptive_clip_converges_to_the_quantile_of_heavy_tails():
    """30 sessions; norms are those of a Cauchy law, shares are read within 0.05."""
    amplitude = advanced.clip_flag_amplitude(
        advanced.PlanRequest(**ASKED | {"clients": 1000, "steps": 30})
    )
    parameters = secagg.plan(**ASKED, clip_flag_amplitude=amplitude).parameters
    units = UnitBounds.of(schedule(lowest_clip=0.01, highest_clip=100.0), parameters)
    unit, steps = units.start, parameters.scale_factor * parameters.l2_clip
    median = 1.7
    norms = median * np.tan(0.5 * np.pi * (np.arange(1000) + 0.5) / 1000)
    assert norms.max() > 100.0 * median
    for number in range(30):
        clip = steps / float(unit)
        error = 0.05 * np.sqrt(2.0) * np.sin(2.4 * number)
        fitted = np.clip(np.mean(norms <= clip) + error, 0.0, 1.0)
        unit = units.following(unit, parameters, fitted=float(fitted))
    assert steps / float(unit) == pytest.approx(median, rel=0.1)


def test_noise_limits_hold_for_every_unit(prepared):
    task = prepared.noised
    lowest = task.local_noise_stddev
    # In caller's units the smallest clip has the least noise.
    fixed_unit = task.mechanism.parameters.scale_factor
    assert lowest * float(task.units.highest) == pytest.approx(
        lowest * fixed_unit * 4.0, rel=2e-3
    )
    task.check_noise(replace(LIMITS, min_local_noise_stddev=0.999 * lowest))
    with pytest.raises(RemoteProtocolError, match="standard deviation"):
        task.check_noise(replace(LIMITS, min_local_noise_stddev=1.001 * lowest))
    share = task.local_noise_multiplier
    task.check_noise(replace(LIMITS, min_local_noise_multiplier=0.999 * share))
    with pytest.raises(RemoteProtocolError, match="longest vector") as caught:
        task.check_noise(replace(LIMITS, min_local_noise_multiplier=1.001 * share))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_an_adaptive_clip_requires_a_flag():
    bare = secagg.plan(**ASKED)
    with pytest.raises(RemoteProtocolError, match="flag"):
        secagg.PreparedTask.from_plan(bare, clip=schedule())


def test_the_flag_amplitude_is_the_smallest_that_suffices():
    few = ASKED | {"clients": 12, "epsilon": 1.0, "steps": 100}
    with pytest.raises(Exception, match="only in noise") as caught:
        advanced.clip_flag_amplitude(advanced.PlanRequest(**few))
    enough = few | {"clients": int(caught.value.nearest)}
    assert advanced.clip_flag_amplitude(advanced.PlanRequest(**enough)) == 0.25
    many = ASKED | {"clients": 100_000}
    assert 0.0 < advanced.clip_flag_amplitude(advanced.PlanRequest(**many)) < 0.01


def test_terms_of_the_next_offer_survive_a_restart():
    terms = unit_terms(Fraction(2048, 3))
    assert (
        TaskHistory.decode(TaskHistory(noise_terms=terms).encode()).noise_terms == terms
    )


async def test_the_clip_changes_from_sum_to_sum_and_the_budget_does_not():
    """Through server and clients."""
    few = ASKED | {"clients": 6, "epsilon": 60.0, "steps": 2}
    amplitude = advanced.clip_flag_amplitude(advanced.PlanRequest(**few))
    made = secagg.plan(**few, clip_flag_amplitude=amplitude)
    prepared = secagg.PreparedTask.from_plan(made, clip=schedule())
    privacy_limits = PrivacyLimits(max_epsilon=60.0, max_delta=1e-5)
    async with secagg.local(
        prepared, clients=6, privacy_limits=privacy_limits
    ) as cohort:
        vectors = [np.full(DIM, 2.0)] * 6
        first = await cohort.sum(vectors)
        second = await cohort.sum(vectors)
    moved = np.exp(-0.2 * (first.fitted - 0.5))
    assert first.l2_clip == pytest.approx(1.0)
    assert second.l2_clip == pytest.approx(moved, rel=1e-3)
    assert second.l2_clip != first.l2_clip
    assert second.privacy == first.privacy
    # A clip that moves shortens some on purpose: counted, and no warning.
    assert (first.shortened, first.replaced) == (6, 0)
