"""A local randomiser inside a task: from the settings to the released sum."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of

import secagg
from secagg import advanced
from secagg.client.budget import TotalBudgetExceededError
from secagg.client.client import Client
from secagg.config import load_server_settings
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, randomised_mse
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.policy import PrivacyLimits, TotalBudget
from secagg.server.task.setup import plan_noise, prepare_task
from secagg.transport.connection import InMemoryConnection

ROOT = Path(__file__).parents[3]
DIM = 6
LIMITS = PrivacyLimits(max_epsilon=60.0, max_delta=1e-5, max_local_epsilon=61.0)


def parameters(**changed):
    fields = {
        "randomiser": "separated",
        "dim": DIM,
        "bound": 2.0,
        "epsilon": 30.0,
        "magnitude_epsilon": 8.0,
    }
    return advanced.LocalParameters(**(fields | changed))


@pytest.fixture(scope="module")
def made():
    randomiser = advanced.make_randomiser(parameters())
    return secagg.plan(
        clients=4,
        min_survivors=3,
        dimension=DIM,
        l2_clip=randomiser.output_norm,
        epsilon=60.0,
        delta=1e-6,
        steps=2,
        mechanism="skellam",
        accountant="skellam-gdp",
        bits=24,
        ladder=0,
    )


@pytest.fixture(scope="module")
def task(made):
    return secagg.PreparedTask.from_plan(made, randomiser=parameters())


async def test_a_sum_of_randomised_vectors_is_released_and_estimated(task):
    vectors = [np.full(DIM, 0.1 * n) for n in range(1, 5)]
    async with secagg.local(task, clients=4, privacy_limits=LIMITS) as cohort:
        released = await cohort.sum(vectors)
    # Ten standard deviations of the stated error, once in 10^20 for a normal law.
    near = 10 * released.standard_error
    assert np.allclose(released.values, sum(vectors), atol=near)
    local = task.report.broken_masks
    assert local.total_epsilon == 60.0
    assert not local.is_exact
    assert local.reconstruction(features=500, cosine=0.9) < 1e-100
    alone, server, readers = task.report.lines()
    assert "breaks the masks: epsilon 30 per session, 60 together" in alone
    assert "the server and its colluders: epsilon" in server
    assert "readers of the sums: epsilon" in readers
    assert (
        type(task.report).from_dict(json.loads(json.dumps(task.report.to_dict())))
        == task.report
    )


def test_encoded_vectors_hold_what_the_randomiser_draws(task):
    noised = task.noised
    secrets = NoiseSecrets(
        share_holders=4,
        context=bytes(32),
        seed=SecretBytes(b"s" * 32),
        layers=tuple(SecretBytes(bytes([each] * 32)) for each in range(9)),
    )
    session_id = b"i" * 32
    vector = np.arange(DIM) * 3.0
    given = noised.encode(vector, session_id=session_id, secrets=secrets)
    drawn = noised.randomiser.randomise(vector, private_seed=b"s" * 32)
    without = replace(noised, budget=replace(noised.budget, randomiser=None))
    expected = without.encode(drawn, session_id=session_id, secrets=secrets)
    assert np.array_equal(given.vector.residues, expected.vector.residues)
    bare = without.encode(vector, session_id=session_id, secrets=secrets)
    assert not np.array_equal(given.vector.residues, bare.vector.residues)
    # Its owner is told of the bound of the randomiser, and no other party.
    assert given.shortened_by == pytest.approx(np.linalg.norm(vector) / 2.0, rel=1e-5)


@pytest.mark.parametrize(
    "name", ["privunit2", "privunit-inf", "scalar-dp", "separated"]
)
def test_every_randomiser_works_in_a_task(name):
    dim = 1 if name == "scalar-dp" else DIM
    magnitude = {} if name == "separated" else {"magnitude_epsilon": None}
    given = parameters(randomiser=name, dim=dim, **magnitude)
    made = secagg.plan(
        clients=3,
        dimension=dim,
        l2_clip=advanced.make_randomiser(given).output_norm,
        epsilon=60.0,
        delta=1e-6,
        mechanism="skellam",
        accountant="skellam-gdp",
        bits=24,
    )
    task = secagg.PreparedTask.from_plan(made, randomiser=given)
    offered = NoisyTask.from_parameters(task.parameters)
    assert offered.budget.randomiser == given
    randomiser = offered.randomiser
    worst = max(randomiser.mse(0.0), randomiser.mse(randomiser.largest_norm))
    added = randomised_mse(randomiser, clients=3, selection_rate=Fraction(1))
    assert added == pytest.approx(3 * worst / dim)
    total = np.zeros(task.parameters.dimension, np.uint64)
    for each in range(3):
        secrets = NoiseSecrets(
            share_holders=3, context=bytes(32), seed=SecretBytes(bytes([each] * 32))
        )
        encoded = offered.encode(
            np.full(dim, 0.5), session_id=b"i" * 32, secrets=secrets
        )
        total += encoded.vector.residues
    found = offered.decode(total % task.parameters.modulus, session_id=b"i" * 32)
    # Ten standard deviations of the stated error; seeds are fixed.
    error = offered.sum_error(inputs=3, certificate=None)
    assert np.allclose(found, 1.5, atol=10 * error.standard_error)


def test_an_unselected_client_reveals_nothing_of_its_randomised_vector(task):
    """One seed, and draws of its own for each layer: neither tells of the other."""
    always = task.noised
    selecting = replace(always, selection_rate=Fraction(1, 2))
    bare = replace(always, budget=replace(always.budget, randomiser=None))
    long, short = np.full(DIM, 0.8), np.full(DIM, -0.1)

    def residues(task, vector, seed):
        secrets = NoiseSecrets(
            share_holders=4, context=bytes(32), seed=SecretBytes(seed)
        )
        made = task.encode(vector, session_id=b"i" * 32, secrets=secrets)
        return made.vector.residues.tolist()

    lost = set()
    for number in range(8):
        seed = bytes([number] * 32)
        sent = residues(selecting, long, seed)
        nothing = residues(bare, 0.0 * long, seed)
        lost.add(sent == nothing)
        if sent == nothing:
            assert residues(selecting, short, seed) == nothing
        else:
            assert sent == residues(always, long, seed)
    assert lost == {True, False}


def test_client_limits_on_the_randomiser_are_enforced(made, task):
    assert NoisyTask.from_parameters(task.parameters).check(LIMITS) == task.report
    stricter = replace(LIMITS, max_local_epsilon=59.0)
    with pytest.raises(RemoteProtocolError, match="local epsilon is 60") as refused:
        task.noised.check_noise(stricter)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    bare = secagg.PreparedTask.from_plan(made)
    assert bare.report.broken_masks is None
    assert "nothing is promised beyond" in bare.report.lines()[0]
    with pytest.raises(RemoteProtocolError, match="no local randomiser"):
        bare.noised.check_noise(LIMITS)


@pytest.mark.parametrize(
    ("privacy_limits", "named"),
    [
        (LIMITS, lambda report: (report.broken_masks.total_epsilon, 0.0)),
        (
            replace(LIMITS, max_local_epsilon=None),
            lambda report: (report.server.epsilon, report.server.delta),
        ),
    ],
)
async def test_a_total_budget_uses_the_figure_of_the_named_adversary(
    task, privacy_limits, named
):
    """And of no other: with 1 percent less the task is refused."""
    epsilon, delta = named(task.report)
    offer = offer_of(task.parameters)
    for limit, fits in ((epsilon * 1.01, True), (epsilon * 0.99, False)):
        total = TotalBudget(data="faces", epsilon=limit, delta=1e-6)
        async with Client(
            InMemoryConnection(None, "alice"),
            task="t",
            privacy_limits=privacy_limits,
            total=total,
        ) as one:
            _, state = one._require_open()
            if not fits:
                with pytest.raises(TotalBudgetExceededError):
                    state.call(lambda opened: opened.total.claim(offer))
                continue
            state.call(lambda opened: opened.total.claim(offer))
            (claimed,) = (await one.data_use()).claims
            assert (claimed.epsilon, claimed.delta) == (epsilon, delta)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"dim": DIM + 1}, "takes vectors of 7"),
        ({"bound": 2.1}, "its l2_clip is"),
        ({"randomiser": "identity"}, "randomiser must be one of"),
        ({"epsilon": 1e9}, "epsilon must lie in"),
        ({"epsilon": "30"}, "epsilon must lie in"),
        ({"magnitude_epsilon": None}, "magnitude_epsilon belongs"),
        ({"extra": 1}, "has no key"),
        ({"bound": 2}, "canonical form"),
    ],
)
def test_a_block_with_another_randomiser_is_rejected(task, changed, complaint):
    block = json.loads(task.parameters.noise_block)
    block["randomiser"] |= changed
    forged = json.dumps(block, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(RemoteProtocolError, match=complaint) as refused:
        NoisyTask.from_parameters(replace(task.parameters, noise_block=forged))
    assert refused.value.code is ErrorCode.BAD_CONFIG


def test_a_clip_flag_on_randomised_vectors_is_rejected(task):
    block = json.loads(task.parameters.noise_block)
    block["mechanism"]["clip_flag_amplitude"] = 0.25
    forged = json.dumps(block, sort_keys=True, separators=(",", ":")).encode()
    wider = NoisyTask.from_parameters(task.parameters).mechanism.encoded_dim
    for dimension in range(wider, wider + 5):  # as many as carry the flag
        changed = replace(task.parameters, noise_block=forged, dimension=dimension)
        with pytest.raises(RemoteProtocolError) as refused:
            NoisyTask.from_parameters(changed)
        if "clip flag" in str(refused.value):
            return
        assert "coordinates" in str(refused.value)
    pytest.fail("no length was refused because of the flag")


@pytest.mark.parametrize("entry", [1, "separated", [], None])
def test_a_randomiser_that_is_no_object_is_rejected(task, entry):
    block = json.loads(task.parameters.noise_block) | {"randomiser": entry}
    forged = json.dumps(block, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(RemoteProtocolError) as refused:
        NoisyTask.from_parameters(replace(task.parameters, noise_block=forged))
    assert refused.value.code is ErrorCode.BAD_CONFIG


def settings(*overrides):
    return load_server_settings(
        ROOT / "deploy" / "config" / "server.minimal.toml",
        environment={},
        overrides=[
            f"vector.dimension={DIM}",
            "vector.modulus_bits=24",
            *("cohort.min_clients=4", "cohort.max_clients=4", "cohort.min_survivors=3"),
            *("noise.epsilon=60", "noise.l2_clip=2.0"),
            *("noise.mechanism=skellam", "noise.accountant=skellam-gdp"),
            *overrides,
        ],
    ).settings


def test_settings_plan_the_noise_for_the_randomiser_output():
    prepared = prepare_task(
        settings("noise.randomiser=separated", "noise.randomiser_epsilon=30")
    )
    noised = prepared.noised
    assert noised.mechanism.parameters.l2_clip == noised.randomiser.output_norm
    assert noised.randomiser.parameters.bound == 2.0
    assert prepared.report.broken_masks.epsilon == 30.0
    bare = prepare_task(settings()).noised
    stated = noised.sum_error(inputs=4, certificate=None)
    added = randomised_mse(noised.randomiser, clients=4, selection_rate=Fraction(1))
    assert stated.mean_square > bare.sum_error(inputs=4, certificate=None).mean_square
    assert stated.mean_square > added


def test_settings_plan_the_modulus_for_the_sum_of_randomiser_outputs():
    given = settings(
        *("cohort.min_clients=900", "cohort.max_clients=900"),
        *("cohort.min_survivors=900", "task.profile=honest-curious-server"),
        *("noise.randomiser=privunit2", "noise.randomiser_epsilon=2"),
        "noise.epsilon=40",
    )
    request = plan_noise(given).request
    sent = advanced.make_randomiser(
        parameters(randomiser="privunit2", epsilon=2.0, magnitude_epsilon=None)
    )
    assert request.l2_clip == sent.output_norm
    assert request.sum_l2_failure == 0.01 / 1024
    assert request.sum_l2_norm == sent.sum_norm(900, failure=0.01 / 1024)
    assert request.sum_l2_norm < 0.5 * 900 * sent.output_norm


def test_settings_of_half_a_randomiser_are_rejected():
    for override in ("noise.randomiser=privunit2", "noise.randomiser_epsilon=3"):
        with pytest.raises(ServiceError, match="belong together"):
            prepare_task(settings(override))
    with pytest.raises(ServiceError, match="randomiser must be one of"):
        prepare_task(settings("noise.randomiser=none", "noise.randomiser_epsilon=3"))


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 4)])
def test_randomiser_error_counts_only_selected_vectors(rate):
    """Of n vectors q·n add their error to the sum, which is divided by q."""
    randomiser = advanced.make_randomiser(parameters())
    each = max(randomiser.mse(0.0), randomiser.mse(randomiser.largest_norm))
    added = randomised_mse(randomiser, clients=100, selection_rate=rate)
    assert added * rate**2 == pytest.approx(100 * rate * each / DIM)
