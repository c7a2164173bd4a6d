"""A task for clients in several languages, from the sample settings to its sum.

The reference stands for a client that was written from PROTOCOL.md alone.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp
from secagg_testing.cohorts import offer_of

from dpnoise.encoding.wrapping import residue_dtype
from secagg.client.program import client_policy
from secagg.config import load_client_settings, load_server_settings
from secagg.config.policy import privacy_limits_of
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.server.task.setup import prepare_task

EXAMPLE = Path(__file__).parents[3] / "examples" / "sum_of_vectors"
SID = bytes(range(32))
CLIENTS = 3


@pytest.fixture(scope="module")
def settings():
    return load_server_settings(EXAMPLE / "server.mixed.toml", environment={}).settings


@pytest.fixture(scope="module")
def parameters(settings):
    return prepare_task(settings).parameters


def test_the_example_client_accepts_the_task(settings, parameters):
    client = load_client_settings(EXAMPLE / "client.toml", environment={}).settings
    assert client.client.task == settings.task.id
    offer = offer_of(
        parameters,
        aggregator="aggregator",
        task_id=settings.task.id,
        session_end=1_800_000_000,
    )
    client_policy(client).check(offer)
    task = NoisyTask.of_session(offer)
    task.check(privacy_limits_of(client.policy), report=task.report())


def test_an_independent_client_implementation_accepts_the_task(
    parameters, reference_modules
):
    block = parameters.noise_block
    entries = json.loads(block)
    assert entries["accountant"] == "mixture-simple"
    assert entries["mechanism"]["mechanism"] == "skellam-mixture"
    assert not {"randomiser", "unit"} & set(entries)
    encoding = reference_modules["reference_encoding"]
    encoding.check_mechanism(block)
    encoding.check_sampler(block)
    encoder = encoding.Encoder.of_block(block)
    assert encoder.length() == parameters.dimension
    assert encoder.rate == 1
    rule = {
        "variance": encoder.noise.counted_variance,
        "norm_squared": Fraction(encoder.bound()),
        "largest": encoder.cap,
        "dim": encoder.length(),
        "releases": entries["participations"] + entries["spare"],
        "delta": Fraction(entries["delta"]),
    }
    rules = reference_modules["reference_rule"]
    with mp.workdps(rules.DIGITS):
        epsilon = min(rules.statement_a(rule), rules.statement_b(rule))
    assert epsilon <= entries["epsilon"]


def test_clients_of_two_implementations_produce_one_sum(parameters, reference_modules):
    encoding = reference_modules["reference_encoding"]
    encoder = encoding.Encoder.of_block(parameters.noise_block)
    task = NoisyTask.from_parameters(parameters)
    turn = encoding.rotation_key(parameters.suite, SID)
    total = np.zeros(parameters.dimension, object)
    sent = np.zeros(task.dim)
    noise = np.zeros(parameters.dimension, np.int64)
    for index in range(CLIENTS):
        vector = np.cos(np.arange(task.dim) + index)
        key_0 = bytes([index]) * 32
        foreign = encoder.encode(
            vector.tolist(),
            rotation_key=turn,
            roster=CLIENTS,
            key_0=key_0,
            layer_keys=[],
        )
        secrets = NoiseSecrets(
            share_holders=CLIENTS, context=b"", seed=SecretBytes(key_0), layers=()
        )
        ours = task.encode(vector, session_id=SID, secrets=secrets).vector
        # One client's upload may come from either.
        assert ours.residues.tolist() == foreign.residues
        total += np.array(foreign.residues, object)
        sent += vector
        noise += foreign.noise
    summed = [int(z) % parameters.modulus for z in total]
    theirs = encoder.decode(summed, turn)
    residues = np.array(summed, residue_dtype(parameters.modulus))
    ours = task.decode(residues, session_id=SID)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-9)
    # Without the draws what is left is rounding: a grid step of each client at most.
    quiet = [
        (z - int(draw)) % parameters.modulus
        for z, draw in zip(summed, noise, strict=True)
    ]
    error = np.array(encoder.decode(quiet, turn)) - sent
    step = 1.0 / encoder.scale
    assert np.linalg.norm(error) <= CLIENTS * step * parameters.dimension**0.5
    assert np.abs(np.array(theirs) - sent).max() > step  # there was noise
