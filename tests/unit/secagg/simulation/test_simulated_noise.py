"""Noise that survives losses, at the size at which it is promised."""

from fractions import Fraction

import pytest
from secagg_testing.cohorts import parameters_for

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, plan
from secagg.protocol.messages import Round
from secagg.simulation import LossPlan, simulate_session

CLIENTS, TOLERATED, DIM = 100, 30, 30


@pytest.fixture(name="parameters", scope="module")
def _parameters():
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        l2_clip=1.0,
        epsilon=2.0,
        delta=1e-5,
        mechanism="skellam",
        min_survivors=CLIENTS - TOLERATED,
        ladder=4,
    )
    protocol = parameters_for(
        CLIENTS,
        dimension=1,
        threshold=51,
        min_survivors=CLIENTS - TOLERATED,
        min_clients=CLIENTS - TOLERATED,
    )
    return NoisyTask.from_plan(made, protocol).parameters


def simulated(parameters, lost_before):
    return simulate_session(
        parameters,
        clients=CLIENTS,
        losses=LossPlan(lost_before),
        entropy=SeededEntropy(SecretBytes(bytes(32)), b"noise"),
    )


@pytest.mark.parametrize("losses", [0, 1, 13, 30])
def test_four_layers_exceed_the_required_noise_by_at_most_2_5_percent(
    parameters, losses
):
    lost = dict.fromkeys(range(losses), Round.MASKED_INPUT_COLLECTION)
    session = simulated(parameters, lost)
    assert session.is_exact
    noise = session.noise
    assert (noise.share_holders, noise.losses) == (CLIENTS, losses)
    assert noise.required <= noise.present <= noise.required * Fraction("1.025")
    # No client colludes and all answer: what is in the sum is one share more.
    assert noise.total == noise.present + noise.remaining


def test_only_dropouts_before_upload_leave_extra_noise(parameters):
    lost = dict.fromkeys(range(5), Round.SHARE_KEYS)
    lost |= dict.fromkeys(range(5, 9), Round.MASKED_INPUT_COLLECTION)
    lost |= dict.fromkeys(range(9, 12), Round.UNMASKING)
    session = simulated(parameters, lost)
    assert session.is_exact
    noise = session.noise
    assert (noise.share_holders, noise.survivors, noise.losses) == (95, 91, 4)
    assert noise.given == (88,) * len(noise.removed)
    # Three have uploaded and never answered: their layers stay.
    stayed = 3 * sum(noise.layers[layer] for layer in noise.removed)
    assert noise.total == noise.present + noise.remaining + stayed
    assert noise.present <= noise.required * Fraction("1.025")
