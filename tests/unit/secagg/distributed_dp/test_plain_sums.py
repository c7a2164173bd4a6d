import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.distributed_dp.units import decode_integers, encode_integers
from secagg.errors import InputError, LocalProtocolError


def parameters(modulus=1 << 8, **overrides):
    return parameters_for(3, dimension=3, threshold=2, modulus=modulus, **overrides)


@pytest.mark.parametrize("modulus", [1 << 8, 251, 1 << 62])
def test_integers_are_decoded_exactly(modulus):
    edges = np.array([-(modulus // 2), 0, (modulus + 1) // 2 - 1])
    vector = encode_integers(edges, parameters(modulus))
    assert decode_integers(vector.residues, modulus).tolist() == edges.tolist()


def test_floats_with_integer_values_are_accepted():
    for kind in (np.float16, np.float32, np.float64):
        vector = encode_integers(np.array([1, -2, 3], dtype=kind), parameters())
        assert vector.residues.tolist() == [1, 254, 3]


@pytest.mark.parametrize(
    ("vector", "word"),
    [
        (np.array([0.0, np.nan, 0.0]), "entry 1"),
        (np.array([0.0, 0.0, np.inf]), "entry 2"),
        (np.array([0.5, 0.0, 0.0]), "entry 0"),
        (np.array([1e30, 0.0, 0.0]), "entry 0"),
        (np.array([128, 0, 0]), "entry 0"),
        (np.array([0, -129, 0]), "entry 1"),
        (np.array([2**63, 0, 0], np.uint64), "entry 0"),
        (np.zeros(4), "4 entries"),
        (np.array(["1", "2", "3"]), "expected numbers"),
    ],
)
def test_an_invalid_vector_is_named_in_the_error(vector, word):
    with pytest.raises(InputError, match=word) as caught:
        encode_integers(vector, parameters())
    assert caught.value.next_step


def test_a_plain_vector_is_rejected_in_a_task_with_noise():
    with pytest.raises(LocalProtocolError, match="noise"):
        encode_integers(np.zeros(3), parameters(noise_block=b"noise"))
