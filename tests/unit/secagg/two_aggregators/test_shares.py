"""Shares against the plain expansion of a mask, and the noise of such a task."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from secagg_testing.two_aggregators import noise_for

from dpnoise import Adversary, make_accountant
from secagg.crypto import key_derivation as kdf
from secagg.crypto import prg
from secagg.crypto.modular import word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import AggregatorNoise, LocalParameters, NoisyTask, plan
from secagg.distributed_dp.noise_block import decode_block
from secagg.errors import InputError, RemoteProtocolError
from secagg.protocol.packing import pack
from secagg.protocol.policy import PrivacyLimits
from secagg.two_aggregators import cohort_parameters
from secagg.two_aggregators.messages import leader_share, sum_of_seeds, sum_of_uploads

SESSION = bytes(range(32))
SEEDS = [SecretBytes(bytes([k]) * 32) for k in range(1, 4)]


@pytest.mark.parametrize("modulus", [1 << 12, 1 << 40, 1_000_003])
def test_shares_sum_to_the_vector_and_all_but_one_are_expansions(modulus) -> None:
    parameters = replace(
        cohort_parameters(min_survivors=2, max_clients=3), modulus=modulus, dimension=70
    )
    vectors = [
        (np.arange(70) * 7919 * k % modulus).astype(word_dtype(modulus))
        for k in range(1, 4)
    ]
    packed = []
    for vector, seed in zip(vectors, SEEDS, strict=True):
        before = vector.copy()
        share = leader_share(vector, seed, session_id=SESSION, parameters=parameters)
        np.testing.assert_array_equal(vector, before)
        key, iv = kdf.additive_share_key(
            seed, session_id=SESSION, suite=parameters.suite
        )
        expanded = prg.expand(key, iv, 70, modulus)  # one word at a time
        np.testing.assert_array_equal(
            (share.astype(object) + expanded.astype(object)) % modulus, vector
        )
        packed.append(pack(share, parameters.bits))
    held = sum_of_seeds(SEEDS, session_id=SESSION, parameters=parameters)
    reads = [lambda at, size, data=data: data[at : at + size] for data in packed]
    kept = sum_of_uploads(reads, parameters)
    total = (held.astype(object) + kept.astype(object)) % modulus
    np.testing.assert_array_equal(
        total, sum(v.astype(object) for v in vectors) % modulus
    )


def test_a_seed_expands_differently_in_every_session() -> None:
    suite = noise_for().parameters.suite
    first, second = (
        kdf.additive_share_key(SEEDS[0], session_id=session, suite=suite)
        for session in (SESSION, bytes(32))
    )
    assert first[0].reveal() != second[0].reveal()
    assert first[1] != second[1]


def test_the_report_counts_one_noise_for_an_aggregator_and_two_for_readers():
    noise = noise_for(rho=0.5)
    report = noise.check(PrivacyLimits(max_epsilon=8.0, max_delta=1e-5))
    curve = make_accountant("zcdp", adversary=Adversary.MODEL_READER)
    curve.compose(noise.mechanism.event())
    # Two sums, by the sums of rho: zero-out costs a quarter of replace-one.
    assert curve.rho == pytest.approx(0.5 / 4, rel=1e-6)
    # The least statement there is; the zCDP of the noise alone states 8 % more.
    assert report.aggregator.accountant == noise.budget.accountant == "skellam-gdp"
    concentrated = noise_for(rho=0.5, accountant="zcdp").report().aggregator
    assert concentrated.accountant == "zcdp"
    assert concentrated.epsilon > 1.05 * report.aggregator.epsilon
    rho = 2 * 0.5 / 4
    assert report.aggregator.epsilon < rho + 2 * math.sqrt(rho * math.log(1e5))
    assert report.reader.epsilon < 0.75 * report.aggregator.epsilon
    stddev = 2**8 / math.sqrt(2 * 0.5) * math.sqrt(2) / 2**7
    assert report.noise_stddev == pytest.approx(stddev, rel=1e-6)
    assert report.to_dict()["charges"] == 2
    assert "nothing is promised" in report.lines()[0]


def test_the_error_of_a_sum_includes_both_noises_and_the_truncation() -> None:
    noise, steps = noise_for(rho=0.5), 2**7
    error = noise.sum_error(inputs=4)
    truncated = 4 / steps  # at most a step of each, all the same way
    both = math.hypot(noise.noise_stddev, truncated)
    assert error.standard_error == pytest.approx(both, rel=1e-9)
    assert not error.flaws
    coarse = noise_for(rho=0.5, bits=2).sum_error(inputs=4)
    assert coarse.flaws == ("rounding may shorten every vector, noise or not",)


def test_each_kind_of_task_rejects_the_noise_of_the_other() -> None:
    between_two = noise_for().parameters
    with pytest.raises(RemoteProtocolError, match="trusted party"):
        NoisyTask.from_parameters(between_two)
    made = plan(
        clients=4,
        dimension=5,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        ladder=0,
    )
    cohort = cohort_parameters(min_survivors=4, max_clients=4)
    shared = NoisyTask.from_plan(made, cohort).parameters
    with pytest.raises(RemoteProtocolError, match="not noise that an aggregator adds"):
        AggregatorNoise.from_parameters(shared)


@pytest.mark.parametrize(
    "change", [{"min_survivors": 2, "min_clients": 2}, {"max_clients": 5}]
)
def test_noise_for_another_cohort_is_rejected(change) -> None:
    with pytest.raises(RemoteProtocolError, match="another cohort"):
        AggregatorNoise.from_parameters(replace(noise_for().parameters, **change))


def test_reports_state_their_proof_and_limits_may_reject_it() -> None:
    noise = noise_for()
    report = noise.report()
    assert report.aggregator.proof == report.reader.proof == "own"
    assert report.to_dict()["aggregator"]["proof"] == "own"
    for line in report.lines()[1:]:
        assert "(own proof))" in line
    privacy_limits = PrivacyLimits(max_epsilon=50.0, max_delta=1e-2)
    noise.check(privacy_limits)
    with pytest.raises(RemoteProtocolError, match=r"only certified \(own proof\)"):
        noise.check(replace(privacy_limits, statuses=frozenset({"published"})))
    # The same noise by a published theorem.
    block = decode_block(noise.parameters.noise_block)
    budget = replace(block.budget, accountant="zcdp", epsilon=50.0)
    published = AggregatorNoise.from_parameters(
        replace(noise.parameters, noise_block=replace(block, budget=budget).encode())
    )
    assert published.report().aggregator.grounds == "proven"
    published.check(replace(privacy_limits, statuses=frozenset({"published"})))


def test_an_invalid_vector_is_rejected_before_anything_is_sent() -> None:
    noise = noise_for()
    for bad in (np.full(5, np.nan), np.zeros(4)):
        with pytest.raises(InputError):
            noise.encode(bad, session_id=SESSION, seed=SEEDS[0])


def test_selection_and_clip_flags_are_rejected_between_two_aggregators() -> None:
    noise = noise_for()
    parameters = noise.parameters
    block = replace(decode_block(parameters.noise_block), selection_rate=Fraction(1, 2))
    with pytest.raises(RemoteProtocolError, match="selects vectors in secret"):
        AggregatorNoise.from_parameters(replace(parameters, noise_block=block.encode()))
    local = LocalParameters(randomiser="privunit2", dim=5, bound=1.0, epsilon=5.0)
    block = decode_block(parameters.noise_block)
    private = replace(block, budget=replace(block.budget, randomiser=local))
    with pytest.raises(RemoteProtocolError, match="local randomiser"):
        AggregatorNoise.from_parameters(
            replace(parameters, noise_block=private.encode())
        )
    flagged = replace(noise.mechanism.parameters, clip_flag_amplitude=0.1)
    with pytest.raises(RemoteProtocolError, match="clip flag"):
        AggregatorNoise.joined(flagged, parameters, epsilon=8.0, delta=1e-5)
