"""Whole sessions between two aggregators, in one process and on a clock by hand."""

import asyncio

import numpy as np
import pytest

from secagg.errors import SecAggError
from secagg.testing.manual_clock import run
from secagg.testing.two_aggregators import TwoAggregators, noise_for

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 5)]


async def give(house, vectors, **changes):
    """Let every client give a vector; return the leader's sum and theirs."""
    clients = [house.client(f"client-{k}", **changes) for k in range(len(vectors))]
    return await asyncio.gather(
        house.leader.next_sum(),
        *(
            client.contribute(vector)
            for client, vector in zip(clients, vectors, strict=True)
        ),
    )


def test_a_sum_is_that_of_the_encoded_vectors_and_two_noises(monkeypatch) -> None:
    drawn = []
    noise = noise_for()
    add_noise = type(noise.mechanism).add_noise

    def watched(mechanism, share, *, private_seed):
        noisy = add_noise(mechanism, share, private_seed=private_seed)
        drawn.append((noisy.astype(np.int64) - share) % mechanism.modulus)
        return noisy

    monkeypatch.setattr(type(noise.mechanism), "add_noise", watched)

    async def main(clock):
        return await give(TwoAggregators(clock, noise), VECTORS)

    released, *contributions = run(main)
    assert released.inputs == 4
    assert len(drawn) == 2
    assert not np.array_equal(*drawn)
    # Truncation in this test's own words, for 8 bits of fixed point.
    exact = sum(np.trunc(vector * 2**7).astype(np.int64) for vector in VECTORS)
    expected = (exact + drawn[0] + drawn[1]) % noise.parameters.modulus
    np.testing.assert_array_equal(released.residues, expected)
    for given in contributions:
        assert given.is_included
        assert given.inputs == 4
        np.testing.assert_array_equal(given.values, released.values)
