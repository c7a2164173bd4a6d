"""What a recording client says of its noise is what a server would subtract."""

import numpy as np
import pytest

from secagg.distributed_dp import NoisedTask, subtract_layers
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.outputs import NoiseRemoval
from secagg.testing.cohorts import parameters_for, with_noise
from secagg.testing.recording_client import _layers

PARAMETERS = with_noise(
    parameters_for(6, dimension=16, threshold=4, min_survivors=4), ladder=2
)
SEEDS = tuple(SecretBytes(bytes([number]) * 32) for number in range(3))


@pytest.mark.parametrize(("sharers", "count"), [(6, 3), (5, 3), (4, 0)])
def test_each_layer_is_what_is_subtracted_for_it(sharers, count):
    secrets = NoiseSecrets(sharers, SEEDS[0], SEEDS)
    rows = _layers(PARAMETERS, secrets)
    layers = NoisedTask.from_parameters(PARAMETERS).session_noise(sharers).layers
    assert rows.shape == (count, 16) == (len(layers), 16)
    for layer, row in enumerate(rows):
        assert row.any()
        left = row.copy()
        seeds = ((layer, SEEDS[layer]),)
        subtract_layers(left, NoiseRemoval(PARAMETERS.noise_block, sharers, seeds))
        assert not np.any(left % PARAMETERS.modulus)


def test_without_noise_there_is_nothing_to_take_back():
    plain = parameters_for(6, dimension=16, threshold=4)
    assert _layers(plain, NoiseSecrets(6, SEEDS[0])).shape == (0, 16)
