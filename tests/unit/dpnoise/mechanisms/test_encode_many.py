"""Encoding a matrix of vectors: the bytes of one call for each, whatever the law."""

import dataclasses
import hashlib
from fractions import Fraction

import numpy as np
import pytest

from dpnoise.encoding import centre, sum_residues
from dpnoise.errors import InputError
from dpnoise.mechanisms import (
    MechanismParameters,
    NoiseRule,
    make_mechanism,
    mechanism_names,
)

CLIENTS, DIM = 5, 12
REAL = [name for name in mechanism_names() if name != "skellam-counts"]


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


SEEDS = [seed("client", row) for row in range(CLIENTS)]
VECTORS = np.linspace(-1.0, 1.0, CLIENTS * DIM).reshape(CLIENTS, DIM)


def parameters(name, **changes):
    given = {
        "mechanism": name,
        "dim": DIM,
        "l2_clip": 1.0,
        "scale_factor": 64.0,
        "modulus": 100_003,
        "noise_rule": NoiseRule(
            counted_variance=Fraction(1000),
            min_survivors=CLIENTS,
            share_bits=1 if name == "binomial" else 20,
        ),
        "num_clients": CLIENTS,
        "linf_bound": Fraction(8) if name == "smm" else None,
    }
    return MechanismParameters(**(given | changes))


@pytest.mark.parametrize("name", REAL)
def test_batch_encoding_equals_encoding_one_by_one(name):
    mechanism = make_mechanism(parameters(name))
    common = {"public_seed": seed("p"), "session_noise": mechanism.session(CLIENTS)}
    many = mechanism.encode_many(VECTORS, private_seeds=SEEDS, **common)
    for row, vector, private_seed in zip(many, VECTORS, SEEDS, strict=True):
        one = mechanism.encode(vector, private_seed=private_seed, **common).residues
        assert row.dtype == one.dtype
        assert row.tobytes() == one.tobytes()


def test_batch_encoding_uses_the_same_layers_and_selections():
    rule = NoiseRule(
        counted_variance=Fraction(1000),
        min_survivors=3,
        loss_fraction=Fraction(2, 5),
        ladder=2,
    )
    mechanism = make_mechanism(parameters("skellam", noise_rule=rule))
    noise = mechanism.session(CLIENTS)
    assert len(noise.layers) == 3
    layers = [[seed(row, layer) for layer in range(3)] for row in range(CLIENTS)]
    common = {
        "public_seed": seed("p"),
        "session_noise": noise,
        "selection_rate": Fraction(1, 2),
    }
    many = mechanism.encode_many(
        VECTORS, private_seeds=SEEDS, layer_seeds=layers, **common
    )
    for row in range(CLIENTS):
        one = mechanism.encode(
            VECTORS[row], private_seed=SEEDS[row], layer_seeds=layers[row], **common
        )
        assert many[row].tobytes() == one.residues.tobytes()


def test_a_batch_without_one_seed_per_row_is_rejected():
    mechanism = make_mechanism(parameters("skellam"))
    common = {"public_seed": seed("p"), "session_noise": mechanism.session(CLIENTS)}
    for vectors, seeds, words in (
        (VECTORS[0], SEEDS, "matrix"),
        (VECTORS.tolist(), SEEDS, "matrix"),
        (VECTORS, SEEDS[1:], "5 vectors"),
        (VECTORS, [SEEDS[0], *SEEDS[:-1]], "same noise"),
    ):
        with pytest.raises(InputError, match=words):
            mechanism.encode_many(vectors, private_seeds=seeds, **common)
    with pytest.raises(InputError, match="layer seeds"):
        mechanism.encode_many(
            VECTORS, private_seeds=SEEDS, layer_seeds=[(), ()], **common
        )


@pytest.mark.parametrize("name", REAL)
def test_encoding_adds_noise_to_the_quantised_vector(name):
    # A central mechanism adds none; another one draws the same noise for a zero vector,
    # which rounds to zeros.
    mechanism = make_mechanism(parameters(name))
    seeds = {"private_seed": SEEDS[0], "public_seed": seed("p")}
    noise = mechanism.session(CLIENTS)
    sent, empty = (
        mechanism.encode(vector, session_noise=noise, **seeds).residues
        for vector in (VECTORS[0], np.zeros(DIM))
    )
    pair = np.stack([sent, (mechanism.modulus - empty.astype(np.uint64))])
    difference = sum_residues(pair % np.uint64(mechanism.modulus), mechanism.modulus)
    steps = mechanism.quantise(VECTORS[0], **seeds)
    assert centre(difference, mechanism.modulus).tolist() == steps.tolist()
    assert np.any(steps)


def test_quantised_vectors_keep_the_bound_of_the_event():
    mechanism = make_mechanism(
        dataclasses.replace(parameters("skellam-mixture"), linf_bound=Fraction(4))
    )
    seeds = {"private_seed": SEEDS[0], "public_seed": seed("p")}
    assert np.abs(mechanism.quantise(100.0 * VECTORS[0], **seeds)).max() <= 4
    with pytest.raises(InputError, match="private_seed"):
        mechanism.quantise(VECTORS[0], private_seed=b"", public_seed=seed("p"))
